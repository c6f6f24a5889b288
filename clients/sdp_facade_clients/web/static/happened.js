// Marks in the trends of the past: what happened in what changed.

import { store } from "./store.js";

// What happened in the shown time of the past: commands, and the alarms that stood at its end.
function happened(begin, end) {
  const { commands, alarms } = store.past ?? {};
  const given = Object.values(commands ?? {}).flat().map((one) => ({ time: Date.parse(one.submitted_time) / 1000, title: one.name }));
  const raised = (alarms ?? []).map((one) => ({ time: one.raised_at, title: one.condition, isAlarm: true }));
  return [...given, ...raised].filter(({ time }) => begin <= time && time <= end).sort((one, other) => one.time - other.time);
}

// A line for each of them; its name is below it where it fits.
export function marksOf(plot) {
  const { ctx, bbox, scales: { x: { min, max } } } = plot;
  const css = getComputedStyle(document.documentElement);
  ctx.save();
  ctx.font = `${10 * devicePixelRatio}px sans-serif`;
  ctx.textAlign = "left";
  let free = bbox.left;
  for (const { time, title, isAlarm } of happened(min, max)) {
    const x = plot.valToPos(time, "x", true);
    ctx.fillStyle = css.getPropertyValue(isAlarm ? "--alarm" : "--focus").trim();
    ctx.fillRect(x, bbox.top, devicePixelRatio, bbox.height);
    if (x < free) continue;
    ctx.fillText(title, x + 3 * devicePixelRatio, bbox.top + 10 * devicePixelRatio);
    free = x + ctx.measureText(title).width + 8 * devicePixelRatio;
  }
  ctx.restore();
}

export function marked(begin, end) {
  const all = happened(begin, end);
  const alarms = all.filter(({ isAlarm }) => isAlarm).length;
  return all.length ? [`marked: commands ${all.length - alarms}, alarms ${alarms}`] : [];
}
