import { dropToken, keepToken } from "./api.js";
import { fill, h, notice } from "./dom.js";

export function signInView(main, _, { signedIn }) {
  const problems = h("div");
  const field = h("input", {
    id: "token",
    name: "token",
    type: "password",
    autocomplete: "current-password",
    spellcheck: "false",
    required: true,
    "aria-describedby": "token-help",
  });
  const button = h("button.primary", "Sign in");
  const form = h(
    "form.card.narrow",
    {
      async onsubmit(event) {
        event.preventDefault();
        const text = field.value.trim();
        if (!text) return;
        if (!/^[\x21-\x7e]+$/.test(text)) {
          fill(
            problems,
            notice(
              "bad",
              "Invalid token",
              "A token contains only letters, digits and punctuation. Copy the complete token.",
            ),
          );
          return;
        }
        button.disabled = true;
        keepToken(text);
        const problem = await signedIn();
        button.disabled = false;
        if (problem) {
          dropToken();
          fill(
            problems,
            notice("bad", problem.status === 401 ? "Token rejected" : problem.title, problem.message),
          );
          field.select();
        }
      },
    },
    h("h1", "Sign in"),
    h("label", { for: "token" }, "Token"),
    field,
    h(
      "p.quiet",
      { id: "token-help" },
      "A static token of this coordinator (",
      h("code", "broadside token add NAME --role viewer"),
      "), or an Entra ID access token. It is stored in this tab only, until you sign out or close it.",
    ),
    problems,
    button,
  );
  main.append(form);
  field.focus();
}
