// all-MiniLM-L6-v2 in plain JavaScript: tokens, six layers, the embedding of a sentence, and how far
// it moves with each head ablated. It runs in a worker made from this function's own text, since a
// page opened from a file may not load one. The weights: book/_ext/mha_book_live.py.
mhaExplorerTake("../live/minilm", function () {
  const D = 384, N = 12, H = 32, F = 1536, LAYERS = 6, EPSILON = 1e-12;
  const SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

  // Tokens, as BERT's uncased tokenizer cuts them.

  class Tokenizer {
    constructor(words) {
      this.words = words;
      this.ids = new Map(words.map((word, id) => [word, id]));
    }
    // Lowercase, without accents, control characters and the space around Chinese characters.
    static normalize(text) {
      return text.replace(/[\t\n\r\p{White_Space}]/gu, " ").replace(/[\0\uFFFD\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu, "")
        .replace(/[\u4E00-\u9FFF\u3400-\u4DBF\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}\u{2B740}-\u{2B81F}\u{2B920}-\u{2CEAF}\uF900-\uFAFF\u{2F800}-\u{2FA1F}]/gu, " $& ")
        .normalize("NFD").replace(/\p{Mn}/gu, "").replace(/./gsu, letter => letter.toLowerCase());
    }
    // The longest known pieces from the left; a word with an unknown piece is unknown as a whole.
    pieces(word) {
      const letters = [...word], found = [];
      if (letters.length > 100) return [this.ids.get("[UNK]")];
      for (let start = 0, end; start < letters.length; start = end) {
        for (end = letters.length; end > start; end--) {
          const id = this.ids.get((start ? "##" : "") + letters.slice(start, end).join(""));
          if (id !== undefined) { found.push(id); break; }
        }
        if (end === start) return [this.ids.get("[UNK]")];
      }
      return found;
    }
    // The ids, at most `limit` of them, and how many there are in all.
    encode(text, limit) {
      const ids = [], punctuation = /([\p{P}$+<=>^`|~])/u;
      for (const part of text.split(/(\[(?:PAD|UNK|CLS|SEP|MASK)\])/)) {
        if (SPECIAL.includes(part)) { ids.push(this.ids.get(part)); continue; }
        for (const run of Tokenizer.normalize(part).split(/\p{White_Space}+/u))
          for (const word of run.split(punctuation)) if (word) ids.push(...this.pieces(word));
      }
      const [first, last] = ["[CLS]", "[SEP]"].map(name => this.ids.get(name));
      return { ids: [first, ...ids.slice(0, limit - 2), last], all: ids.length + 2 };
    }
  }

  // Layers. A matrix has a row for each output, (out, in); so a product is sums along rows.

  // y = x wᵀ + b for `rows` rows of x, in blocks of four outputs by two rows.
  const linear = (x, rows, { w, b, n, k }) => {
    const y = new Float32Array(rows * n);
    for (let o = 0; o < n; o += 4) {
      const w0 = o * k, w1 = w0 + k, w2 = w1 + k, w3 = w2 + k;
      for (let r = 0; r < rows; r += 2) {
        // An odd last row is computed twice.
        const s = Math.min(r + 1, rows - 1), x0 = r * k, x1 = s * k;
        let a0 = b[o], a1 = b[o + 1], a2 = b[o + 2], a3 = b[o + 3], c0 = a0, c1 = a1, c2 = a2, c3 = a3;
        for (let i = 0; i < k; i++) {
          const p = x[x0 + i], q = x[x1 + i];
          const u0 = w[w0 + i], u1 = w[w1 + i], u2 = w[w2 + i], u3 = w[w3 + i];
          a0 += p * u0; a1 += p * u1; a2 += p * u2; a3 += p * u3;
          c0 += q * u0; c1 += q * u1; c2 += q * u2; c3 += q * u3;
        }
        const m = r * n + o, l = s * n + o;
        y[m] = a0; y[m + 1] = a1; y[m + 2] = a2; y[m + 3] = a3;
        y[l] = c0; y[l + 1] = c1; y[l + 2] = c2; y[l + 3] = c3;
      }
    }
    return y;
  };
  const normalize = (x, { weight, bias }) => {
    for (let r = 0; r < x.length; r += D) {
      let mean = 0, square = 0;
      for (let i = 0; i < D; i++) mean += x[r + i] / D;
      for (let i = 0; i < D; i++) square += (x[r + i] - mean) ** 2 / D;
      const scale = 1 / Math.sqrt(square + EPSILON);
      for (let i = 0; i < D; i++) x[r + i] = (x[r + i] - mean) * scale * weight[i] + bias[i];
    }
    return x;
  };
  // x Φ(x), with erf by Abramowitz and Stegun 7.1.26, right to 2e-7.
  const gelu = x => {
    for (let n = 0; n < x.length; n++) {
      const z = Math.abs(x[n]) * Math.SQRT1_2, t = 1 / (1 + 0.3275911 * z);
      const rest = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592)
        * t * Math.exp(-z * z);
      x[n] *= x[n] < 0 ? rest / 2 : 1 - rest / 2;
    }
    return x;
  };
  const add = (x, y) => { for (let n = 0; n < x.length; n++) x[n] += y[n]; return x; };

  class Model {
    // `codes` are the steps of all matrices in order, `floats` the scales of their rows, then vectors.
    constructor(words, codes, floats, limit) {
      this.tokenizer = new Tokenizer(words);
      this.limit = limit;
      let atCode = 0, atFloat = 0;
      const vector = size => floats.subarray(atFloat, atFloat += size);
      const norm = () => ({ weight: vector(D), bias: vector(D) });
      const shapes = Array(LAYERS).fill([...Array(4).fill([D, D]), [F, D], [D, F]]);
      const [word, ...matrices] = [[words.length, D], ...shapes.flat()].map(([n, k]) =>
        ({ n, k, codes: codes.subarray(atCode, atCode += n * k), scales: vector(n) }));
      this.word = { ...word, codes: word.codes.slice() };
      this.place = vector(limit * D);
      this.norm = norm();
      this.layers = shapes.map((_, l) => {
        const maps = matrices.slice(6 * l, 6 * l + 6).map(({ n, k, codes, scales }) => {
          const w = new Float32Array(n * k);
          for (let o = 0; o < n; o++) for (let i = o * k; i < (o + 1) * k; i++) w[i] = codes[i] * scales[o];
          return { n, k, w, b: vector(n) };
        });
        const [query, key, value, out, widen, narrow] = maps;
        return { query, key, value, out, widen, narrow, attentionNorm: norm(), outputNorm: norm() };
      });
    }
    embed(ids) {
      const x = this.place.slice(0, ids.length * D), { codes, scales } = this.word;
      ids.forEach((id, t) => {
        for (let i = 0; i < D; i++) x[t * D + i] += codes[id * D + i] * scales[id];
      });
      return normalize(x, this.norm);
    }
    // What the heads find, side by side (rows, D); the weights (N, T, T) of a single sentence.
    attend(layer, x, T) {
      const rows = x.length / D, found = new Float32Array(rows * D), weights = new Float32Array(N * T * T);
      const [q, k, v] = [layer.query, layer.key, layer.value].map(map => linear(x, rows, map));
      const row = new Float64Array(T);
      for (let start = 0; start < rows; start += T) for (let h = 0; h < N; h++) for (let i = 0; i < T; i++) {
        const at = (start + i) * D + h * H;
        let most = -Infinity, sum = 0;
        for (let j = 0; j < T; j++) {
          const other = (start + j) * D + h * H;
          let score = 0;
          for (let c = 0; c < H; c++) score += q[at + c] * k[other + c];
          row[j] = score / Math.sqrt(H);
          most = Math.max(most, row[j]);
        }
        for (let j = 0; j < T; j++) sum += row[j] = Math.exp(row[j] - most);
        for (let j = 0; j < T; j++) {
          const weight = weights[(h * T + i) * T + j] = row[j] / sum, other = (start + j) * D + h * H;
          for (let c = 0; c < H; c++) found[at + c] += weight * v[other + c];
        }
      }
      return { found, weights, v };
    }
    // From the sum behind attention to the layer's output.
    rest(layer, x) {
      normalize(x, layer.attentionNorm);
      const rows = x.length / D, wide = gelu(linear(x, rows, layer.widen));
      return normalize(add(linear(wide, rows, layer.narrow), x), layer.outputNorm);
    }
    forward(layer, x, T) {
      return this.rest(layer, add(linear(this.attend(layer, x, T).found, x.length / D, layer.out), x));
    }
    // The embedding of each sentence: the mean of its tokens, of length 1.
    pool(x, T) {
      return Array.from({ length: x.length / D / T }, (_, b) => {
        const sum = new Float64Array(D);
        for (let t = 0; t < T; t++) for (let i = 0; i < D; i++) sum[i] += x[(b * T + t) * D + i];
        const length = Math.hypot(...sum);
        return sum.map(y => y / length);
      });
    }
    // How long what head h hands over for each of the rows is, from its values: |v W_O|.
    lengths(out, v, rows, h) {
      return Float32Array.from({ length: rows }, (_, t) => {
        let square = 0;
        for (let o = 0; o < D; o++) {
          let sum = 0;
          for (let c = 0, at = t * D + h * H, w = o * D + h * H; c < H; c++) sum += v[at + c] * out.w[w + c];
          square += sum * sum;
        }
        return Math.sqrt(square);
      });
    }
    run(text) {
      const { ids, all } = this.tokenizer.encode(text, this.limit), T = ids.length;
      const weights = new Float32Array(LAYERS * N * T * T), values = new Float32Array(LAYERS * N * T);
      const inputs = [];
      let x = this.embed(ids);
      this.layers.forEach((layer, l) => {
        const { found, weights: given, v } = this.attend(layer, x, T);
        inputs.push({ x, found });
        weights.set(given, l * N * T * T);
        for (let h = 0; h < N; h++) {
          const lengths = this.lengths(layer.out, v, T, h), most = Math.max(...lengths);
          values.set(lengths.map(length => length / most), (l * N + h) * T);
        }
        x = this.rest(layer, add(linear(found, T, layer.out), x));
      });
      const [embedding] = this.pool(x, T);
      this.last = { T, inputs, embedding };
      return { ids, all, read: this.reads(text, all), tokens: ids.map(id => this.tokenizer.words[id]), weights, values, embedding };
    }
    // How many characters of the text its tokens have been read from: up to the end of a word.
    reads(text, all) {
      if (all <= this.limit) return text.length;
      const ends = [...text.matchAll(/\S(?=\s)/g)].map(({ index }) => index + 1);
      let low = 0, high = ends.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.tokenizer.encode(text.slice(0, ends[middle]), this.limit).all <= this.limit) low = middle + 1;
        else high = middle;
      }
      return low ? ends[low - 1] : text.length;
    }
    // 1 − cosine of the last sentence's embedding with that of the model without each of `many` heads of a layer.
    without(l, from, many) {
      const { T, inputs, embedding } = this.last, { x, found } = inputs[l], size = T * D;
      const heads = new Float32Array(many * size), again = new Float32Array(many * size);
      for (let n = 0, h = from; n < many; n++, h++) {
        heads.set(found, n * size);
        again.set(x, n * size);
        for (let t = 0; t < T; t++) heads.fill(0, n * size + t * D + h * H, n * size + t * D + (h + 1) * H);
      }
      const layer = this.layers[l];
      let y = this.rest(layer, add(linear(heads, many * T, layer.out), again));
      for (const next of this.layers.slice(l + 1)) y = this.forward(next, y, T);
      return this.pool(y, T).map(e => 1 - e.reduce((sum, c, i) => sum + c * embedding[i], 0));
    }
  }

  // In a worker: parts come in, then sentences; a new sentence stops the ablations of the one before.
  const listen = scope => {
    const steps = new Int16Array(2048), later = task => setTimeout(task, 0);
    let codes, filled = 0, first, words, turn = 0, model;
    // 0, −1, 1, −2, 2, … have the characters that a string may hold, in order.
    [...steps.keys()].filter(code => ![0, 10, 13, 34, 92].includes(code))
      .forEach((code, n) => { steps[code] = n % 2 ? -(n + 1) / 2 : n / 2; });
    scope.onmessage = ({ data: { given, limit, id, text } }) => {
      if (given && !first) {
        first = given;
        words = given.words.split("\n");
        codes = new Int16Array(words.length * D + LAYERS * (4 * D * D + 2 * D * F));
      } else if (given) {
        for (let i = 0; i < given.length; i++) codes[filled++] = steps[given.charCodeAt(i)];
        if (filled < codes.length) return;
        const bytes = Uint8Array.from(atob(first.floats), c => c.charCodeAt(0));
        model = new Model(words, codes, new Float32Array(bytes.buffer), limit);
        codes = first.floats = null;
      } else {
        const mine = ++turn, start = performance.now(), found = model.run(text);
        scope.postMessage({ id, ...found, took: performance.now() - start });
        // A few heads at a time, so that a new sentence waits little.
        const many = 3, next = at => later(() => {
          if (mine !== turn || at < 0) return;
          scope.postMessage({ id, at, without: model.without(Math.floor(at / N), at % N, many) });
          next(at - many);
        });
        next(LAYERS * N - many);
      }
    };
  };
  return { listen };
});
