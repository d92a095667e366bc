// The page of the service: what it is, and the parts of the page.

import { startAdmin } from "./admin.js";
import { call } from "./api.js";
import { prepareAsk, startAsk } from "./ask.js";
import { $, number, plural } from "./dom.js";
import { startLive } from "./live.js";
import { prepareTasks, showTasks } from "./tasks.js";
import { prepareVersions } from "./versions.js";

const RETRY = 2000; // milliseconds, while the service loads its encoder

async function about() {
  for (;;) {
    try {
      return await call("/v1/info");
    } catch (error) {
      $("about").textContent = error.message;
      await new Promise((go) => setTimeout(go, RETRY));
    }
  }
}

prepareAsk(showTasks);
prepareTasks();
prepareVersions(showTasks);
const info = await about();
const { encoder } = info;
$("about").textContent =
  `${plural(info.tasks, "task")} over ${encoder.name} (${number(encoder.parameters)} parameters) · ` +
  `${info.device}, ${info.precision} · version ${info.intarsia}`;
startAsk(info);
startAdmin(info);
showTasks();
startLive();
