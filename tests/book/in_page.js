// What tests ask a page of the book, or an element of it, in a browser, by `in_page` of browsing.py.
{
  // Waits until MathJax, if the page has it, has typeset everything.
  mathReady: async () => {
    if (!document.querySelector('script[src*="mathjax"]')) return true;
    for (let n = 0; n < 200 && !(window.MathJax && MathJax.startup && MathJax.startup.promise); n++)
      await new Promise(r => setTimeout(r, 25));
    await MathJax.startup.promise;
    return true;
  },

  // What makes a page wider than its window.
  wider: () => {
    const page = document.documentElement;
    if (page.scrollWidth <= window.innerWidth) return [];
    return [...document.querySelectorAll('article *')]
      .filter(e => e.getBoundingClientRect().right > window.innerWidth + 1)
      .slice(0, 5)
      .map(e => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 40)}`)
      .concat([`page: ${page.scrollWidth} px`]);
  },

  math: () => {
    const left = [];
    for (const e of document.querySelectorAll('.math, .tex2jax_process'))
      if (!e.querySelector('mjx-container')) left.push(e.textContent.trim().slice(0, 60));
    const walker = document.createTreeWalker(
      document.querySelector('article') || document.body, NodeFilter.SHOW_TEXT);
    const raw = [];
    for (let n = walker.nextNode(); n; n = walker.nextNode()) {
      if (n.parentElement.closest('pre, code, script, style, mjx-container')) continue;
      if (/\$\$|\\\(|\\\[|\\begin\{/.test(n.data)) raw.push(n.data.trim().slice(0, 60));
    }
    const errors = [...document.querySelectorAll('mjx-merror, .MathJax_Error')];
    return {left, raw, errors: errors.map(e => e.textContent.slice(0, 60))};
  },

  // Pictures that did not load, and those without alternative text.
  images: async () => {
    const all = [...document.querySelectorAll('article img')];
    for (const i of all) { i.loading = 'eager'; await i.decode().catch(() => {}); }
    return [...all.filter(i => !i.naturalWidth).map(i => `missing: ${i.src}`),
            ...all.filter(i => !i.alt.trim()).map(i => `no alt text: ${i.src}`)];
  },

  // Icons that are on the page and have no glyph of their font, or no width.
  icons: async () => {
    await document.fonts.ready;
    const shown = [...document.querySelectorAll('i[class*="fa-"], svg[class*="fa-"]')]
      .filter(e => e.getClientRects().length && getComputedStyle(e).visibility === 'visible');
    const good = e => {
      const {content, font} = getComputedStyle(e, '::before');
      return e.getBoundingClientRect().width > 4 && content.length === 3 &&
        document.fonts.check(font, content[1]);
    };
    return {count: shown.length, bad: shown.filter(e => !good(e)).map(e => e.className)};
  },

  // Formulas at which the Tab key stops though they need no scrolling.
  stops: () => [...document.querySelectorAll('article mjx-container[tabindex="0"]')]
    .filter(e => e.scrollWidth <= e.clientWidth + 1).length,

  // Buttons, links and folds whose label does not say what is read on them.
  misnamed: () => [...document.querySelectorAll(':is(button, a, summary)[aria-label]')]
    .filter(e => e.getClientRects().length && e.innerText.trim())
    .filter(e => !e.getAttribute('aria-label').toLowerCase()
      .includes(e.innerText.trim().toLowerCase().replace(/\s+/g, ' ')))
    .map(e => `${e.getAttribute('aria-label')}: ${e.innerText.trim()}`),

  // What of a page would be missing on paper.
  onPaper: () => ({
    theme: document.documentElement.dataset.theme,
    cut: [...document.querySelectorAll('article pre')]
      .filter(e => !e.closest('.page-code .cell:not(.tag_solution)'))
      .filter(e => e.scrollWidth > e.clientWidth + 1 || !e.getClientRects().length)
      .map(e => e.textContent.slice(0, 60)),
    closed: [...document.querySelectorAll('article details pre')].filter(e => !e.closest('.page-code .cell:not(.tag_solution)'))
      .filter(e => e.getBoundingClientRect().height < 10 || !e.checkVisibility({
        contentVisibilityAuto: true, opacityProperty: true, visibilityProperty: true}))
      .map(e => e.textContent.slice(0, 60)),
    plotting: [...document.querySelectorAll('.page-code .cell:not(.tag_solution)')].some(e => e.getClientRects().length),
  }),

  // The figures of a page: in which colors, how large, and whether the box scrolls.
  figures: () => [...document.querySelectorAll('.figure-scroll')].map(box => {
    const seen = box.querySelector('img');
    const {width, height} = seen.getBoundingClientRect();
    const narrow = box.querySelector('source');
    const drawn = narrow && matchMedia(narrow.media).matches ? narrow : seen;
    return {filter: getComputedStyle(seen).filter, source: drawn.getAttribute('srcset') ?? drawn.getAttribute('src'),
            width, height, drawn: +drawn.getAttribute('width'),
            scrolls: box.scrollWidth > box.clientWidth + 2, stop: box.tabIndex};
  }),

  set: ([id, value]) => {
    const input = document.getElementById(id);
    if (input.type === 'checkbox') input.checked = value; else input.value = value;
    input.dispatchEvent(new Event('input', {bubbles: true}));
  },

  // A change is drawn in the next frame, so that it stands there in the frame after that one.
  drawn: async () => { for (let n = 0; n < 2; n++) await new Promise(requestAnimationFrame); },

  // Moves a slider in every frame for a while; what a screen reader was told from then on.
  said: async id => {
    const slider = document.getElementById(id);
    const voice = slider.closest('.lab').querySelector('[role=status]');
    const said = [];
    new MutationObserver(() => said.push(voice.textContent)).observe(voice, {childList: true});
    for (let n = 0; n < 20; n++) {
      slider.stepUp();
      slider.dispatchEvent(new Event('input', {bubbles: true}));
      await new Promise(requestAnimationFrame);
    }
    while (!said.length) await new Promise(requestAnimationFrame);
    return said;
  },

  numbers: box => Object.fromEntries([...box.querySelectorAll('[data-number]')]
    .map(e => [e.dataset.number, Number(e.dataset.exact)])),

  texts: box => Object.fromEntries([...box.querySelectorAll('[data-number]')]
    .map(e => [e.dataset.number, e.textContent])),

  blocks: box => [...box.querySelectorAll('tr[data-block]')].map(row =>
    [...row.querySelectorAll('td')].map(cell => Number(cell.dataset.exact))),

  // Tokens, weights and embedding of a sentence, as the page has them after a run.
  run: async text => {
    const explorer = document.getElementById('explorer').explorer;
    explorer.text.value = text;
    await explorer.read();
    const { read, minilm: { tokens, maps, embedding } } = explorer.index.sentences.own;
    return { read, tokens, weights: [...maps.weights], embedding: [...embedding] };
  },

  // Where the first picture, the formula and the lines end, in heights of the window.
  bottoms: () => [
    '#lab-token', '#the-formula div.math', '#the-layer-in-fifteen-lines pre'
  ].map(at => document.querySelector(at).getBoundingClientRect().bottom / innerHeight),

  off: () => {
    const slide = document.querySelector("section.present"), edge = slide.getBoundingClientRect();
    const seen = [...slide.querySelectorAll("li, pre, table, img, mjx-container")];
    return seen.filter(e => !e.closest("figcaption"))
      .map(e => [e.getBoundingClientRect(), e.textContent.slice(0, 40)])
      .filter(([box]) => box.bottom > edge.bottom + 1 || box.right > edge.right + 1)
      .map(([box, text]) => text);
  },
}
