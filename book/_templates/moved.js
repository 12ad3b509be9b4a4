// The old addresses: see book/_ext/mha_book_addresses.py, which puts in the two maps.
(function () {
  "use strict";
  var labels = {{ labels }};
  var moved = {{ moved }};
  function follow() {
    if (!/\/book\/[^/]*$/.test(location.pathname)) return;
    var anchor = decodeURIComponent(location.hash.slice(1));
    var page = location.pathname.split("/").pop().replace(/\.html$/, "");
    var here = moved[page] || {};
    if (anchor && document.getElementById(anchor)) return;
    var target;
    if (Object.prototype.hasOwnProperty.call(here, anchor)) target = here[anchor];
    else if (anchor && Object.prototype.hasOwnProperty.call(labels, anchor))
      target = labels[anchor] + "#" + anchor;
    else if (Object.prototype.hasOwnProperty.call(here, "")) target = here[""];
    if (!target) return;
    var parts = target.split("#");
    if (parts[0] === page) location.hash = parts[1] || "";
    else location.replace(parts[0] + ".html" + (parts[1] ? "#" + parts[1] : ""));
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", follow);
  else follow();
  window.addEventListener("hashchange", follow);
})();
