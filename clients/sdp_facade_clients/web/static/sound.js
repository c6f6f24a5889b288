// One short tone for new alarms, by the worst severity, at most one a second; silent until a person switches it on.

import { html } from "./vendor/lit-html.js";
import { redraw } from "./app.js";

let audio = null;
let beeped = -Infinity;
const TONES = { CRITICAL: 880, ALARM: 660, WARNING: 440 };

export function soundButton() {
  const turn = () => { audio = audio ? null : new AudioContext(); redraw(); };
  return html`<button aria-pressed=${audio ? "true" : "false"} @click=${turn}>${audio ? "Sound on" : "Sound off"}</button>`;
}

// `told` gives the new alarms; it is asked only while the sound is on.
export function sound(told) {
  if (!audio || performance.now() - beeped < 1000) return;
  const some = told();
  const worst = Object.keys(TONES).find((severity) => some.some((one) => one.severity === severity));
  if (!worst) return;
  beeped = performance.now();
  const tone = audio.createOscillator();
  const volume = audio.createGain();
  volume.gain.value = 0.1;
  tone.frequency.value = TONES[worst];
  tone.connect(volume).connect(audio.destination);
  tone.start();
  tone.stop(audio.currentTime + 0.25);
}
