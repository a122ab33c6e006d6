// The frame of the console: the header with the menu, the current page, and a banner if the service does not answer.

import { call } from "./lib/api.js";
import { fill, h, icon, link } from "./lib/dom.js";
import * as online from "./lib/online.js";
import * as router from "./lib/router.js";
import * as session from "./lib/session.js";
import { problem } from "./parts/notices.js";
import { diffusionPage } from "./pages/diffusion.js";
import { endpointsPage } from "./pages/endpoints.js";
import { galleryPage } from "./pages/gallery.js";
import { jobPage } from "./pages/job.js";
import { keysPage } from "./pages/keys.js";
import { signInPage } from "./pages/signin.js";
import { usePage } from "./pages/use.js";
import { workflowPage } from "./pages/workflow.js";
import { workflowsPage } from "./pages/workflows.js";

/** Pages by their addresses. The menu shows a page only if the key has its `scope`. */
const PAGES = {
  create: { name: "Create", show: diffusionPage, scope: "generate" },
  workflow: { name: "Workflow", show: workflowPage, scope: "generate" },
  workflows: { name: "Named workflows", show: workflowsPage, scope: "read" },
  gallery: { name: "Gallery", show: galleryPage, scope: "read" },
  endpoints: { name: "Endpoints", show: endpointsPage, scope: "endpoints" },
  keys: { name: "Keys", show: keysPage, scope: "admin" },
  use: { name: "Use", show: usePage, scope: "read" },
  job: { name: "Job", show: jobPage, scope: null },
};

const main = h("main", { id: "main", tabindex: "-1" });
const banner = h("div", { class: "banner", role: "status", hidden: true });
const header = h("header", { class: "top" });
let leaving = new AbortController();

function showHeader(current) {
  const pages = Object.entries(PAGES).filter(([, page]) => page.scope && session.may(page.scope));
  const items = pages.map(([address, page]) =>
    h("li", {}, link(page.name, `#/${address}`, { "aria-current": address === current ? "page" : undefined })),
  );
  const owner = session.caller()?.owner;
  fill(
    header,
    link([h("img", { src: "console/icon.svg", alt: "", width: 28, height: 28 }), h("span", {}, "Darkroom")], "#/", { class: "brand" }),
    owner && h("nav", { "aria-label": "Main" }, h("ul", {}, items)),
    owner &&
      h(
        "div",
        { class: "account" },
        h("span", { class: "owner", title: "Whose key this is" }, owner),
        h("button", { type: "button", class: "button quiet", onclick: () => session.end() }, icon("out"), h("span", {}, "Sign out")),
      ),
  );
}

/** Shows the page of the address, and ends the requests of the previous page. */
async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  if (!session.caller()) {
    document.title = "Sign in · Darkroom";
    showHeader("");
    fill(main, signInPage({ signal }));
    return;
  }
  const { name, parameter, query } = router.here();
  const page = PAGES[name] ?? PAGES[firstPage()];
  document.title = `${page.name} · Darkroom`;
  showHeader(PAGES[name] ? name : firstPage());
  try {
    const content = await page.show({ signal, parameter, query });
    if (!signal.aborted) fill(main, content);
  } catch (error) {
    if (signal.aborted) return;
    fill(main, h("div", { class: "page" }, problem(error)));
    online.onReturn(show, signal);
  }
}

function firstPage() {
  return session.may("generate") ? "create" : session.may("read") ? "gallery" : "endpoints";
}

function showBanner() {
  banner.hidden = online.answers();
  fill(banner, banner.hidden ? [] : [h("span", { class: "spinner", "aria-hidden": "true" }), "The service does not answer. Trying again…"]);
}

/** Signs in again with the key that this tab stored before a reload. */
async function resume() {
  const key = session.key();
  if (!key) return;
  try {
    session.begin(key, await call("v1/usage", { key }));
  } catch (error) {
    if (error.status === 401) return;
    if (error.status) session.end(error.message);
    else await returned().then(resume);
  }
}

function returned() {
  return new Promise((resolve) => online.onReturn(resolve));
}

fill(document.getElementById("app"), banner, header, main);
online.onChange(showBanner);
showHeader("");
await resume();
session.onChange(show);
router.onMove(async () => {
  if (location.hash === "#main") return;
  await show();
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
});
await show();
