// Draw an unusual second at seven positions in a chart of 1,740 s, and use the pixels to count how
// many of them are visible.
async (module) => {
  const { LineChart } = await import(module);
  const seconds = 1740;
  const places = [200, 201, 202, 203, 204, 205, 206];
  const steady = () => Array(seconds).fill(100);

  // Draw a single series and return the pixels of the plot.
  const drawn = (series) => {
    const cursor = { second: null, key() {}, set() {} };
    const chart = new LineChart({ title: "x", unit: "bit/s", format: String, cursor, minTop: 200 });
    const container = document.createElement("div");
    container.style.width = "360px";
    document.body.append(container);
    container.append(chart.element);
    chart.show({ total: seconds }, { series: [{ name: "x", colour: "received", ...series }] });
    const { width, height } = chart.canvas;
    const pixels = chart.canvas.getContext("2d").getImageData(0, 0, width, height).data;
    container.remove();
    return pixels;
  };
  const off = (one, other) => {
    let count = 0;
    for (let i = 0; i < one.length; i += 4)
      if ([0, 1, 2, 3].some((part) => Math.abs(one[i + part] - other[i + part]) > 24)) count++;
    return count;
  };
  const line = (values) => drawn({ points: values });
  const band = (values) => drawn({ low: values, high: values.map((value) => value && 150) });
  const shown = (draw, values, odd) => {
    const plain = draw(values());
    return places.filter((place) => {
      const changed = values();
      changed[place] = odd;
      return off(draw(changed), plain) > 0;
    }).length;
  };
  const nothing = () => Array(seconds).fill(null);
  return {
    dips: shown(line, steady, 10),
    lone: shown(line, nothing, 100),
    gaps: shown(line, steady, null),
    "dips in a band": shown(band, steady, 10),
    "gaps in a band": shown(band, steady, null),
  };
};
