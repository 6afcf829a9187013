/* placeholder, rewritten by the agent room */
int broadside_gate_placeholder;
