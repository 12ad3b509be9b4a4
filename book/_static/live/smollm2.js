// SmolLM2-135M-Instruct in plain JavaScript: the GGUF file's own 4 and 8 bit weights, its tokenizer, 30
// layers, and what token comes next, with heads ablated or not. It runs in a worker made from this
// function's own text, since a page opened from a file may not load one.
lab.give("smollm2", function () {
  const D = 576, N = 9, K = 3, H = 64, F = 1536, LAYERS = 30, EPSILON = 1e-5, THETA = 1e5;
  const LONGEST = 64; // tokens: the first one, and the last of the text
  const BLOCK = 32; // weights that share a scale
  const F32 = 0, Q4_1 = 3, Q8_0 = 8; // formats of GGUF, with the bytes of a block
  const BYTES = { [F32]: 4 * BLOCK, [Q4_1]: 20, [Q8_0]: 34 };

  // Numbers of 16 bits, all of them.
  const half = Float32Array.from({ length: 65536 }, (_, bits) => {
    const sign = bits >> 15 ? -1 : 1, exponent = bits >> 10 & 31, rest = bits & 1023;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + rest / 1024) : 2 ** -24 * rest);
  });

  // A GGUF file: fields, then tensors by name.
  const open = bytes => {
    const view = new DataView(bytes.buffer), text = new TextDecoder();
    let at = 8; // after the name of the format and its version
    const long = () => { const n = Number(view.getBigUint64(at, true)); at += 8; return n; };
    const string = () => { const n = long(); at += n; return text.decode(bytes.subarray(at - n, at)); };
    const plain = (size, get) => () => { at += size; return view[get](at - size, true); };
    const int = plain(4, "getUint32");
    const values = [plain(1, "getUint8"), plain(1, "getInt8"), plain(2, "getUint16"), plain(2, "getInt16"), int,
      plain(4, "getInt32"), plain(4, "getFloat32"), plain(1, "getUint8"), string, () => {
        const read = values[int()];
        return Array.from({ length: long() }, read);
      }, long, long, plain(8, "getFloat64")];
    const [tensors, entries] = [long(), long()], fields = {}, found = {};
    for (let n = 0; n < entries; n++) {
      const name = string();
      fields[name] = values[int()]();
    }
    for (let n = 0; n < tensors; n++) {
      const name = string(), shape = Array.from({ length: int() }, long);
      found[name] = { k: shape[0], n: shape[1] ?? 1, type: int(), offset: long() };
    }
    const start = Math.ceil(at / 32) * 32;
    for (const tensor of Object.values(found)) {
      const size = tensor.n * tensor.k / BLOCK * BYTES[tensor.type];
      tensor.bytes = bytes.subarray(start + tensor.offset, start + tensor.offset + size);
    }
    return { fields, tensors: found };
  };

  // Row o of a tensor as numbers, into y from place `to` on.
  const row = ({ bytes, type, k }, o, y, to) => {
    for (let b = 0, at = o * k / BLOCK * BYTES[type]; b < k; b += BLOCK, at += BYTES[type]) {
      const scale = half[bytes[at] | bytes[at + 1] << 8], place = to + b;
      if (type === Q4_1) { // the low halves of its bytes are its first numbers
        const least = half[bytes[at + 2] | bytes[at + 3] << 8];
        for (let i = 0; i < 16; i++) {
          const two = bytes[at + 4 + i];
          y[place + i] = scale * (two & 15) + least;
          y[place + 16 + i] = scale * (two >> 4) + least;
        }
      } else for (let i = 0; i < BLOCK; i++) y[place + i] = scale * (bytes[at + 2 + i] << 24 >> 24);
    }
  };

  // y = x wᵀ for `rows` rows of x, four outputs by two rows at a time; a matrix is (out, in).
  const four = new Float32Array(4 * F);
  const linear = (x, rows, w) => {
    const { n, k } = w, y = new Float32Array(rows * n);
    for (let o = 0; o < n; o += 4) {
      for (let j = 0; j < 4; j++) row(w, o + j, four, j * k);
      for (let r = 0; r < rows; r += 2) {
        // An odd last row is computed twice.
        const s = Math.min(r + 1, rows - 1), x0 = r * k, x1 = s * k;
        let a0 = 0, a1 = 0, a2 = 0, a3 = 0, c0 = 0, c1 = 0, c2 = 0, c3 = 0;
        for (let i = 0; i < k; i++) {
          const p = x[x0 + i], q = x[x1 + i];
          const u0 = four[i], u1 = four[k + i], u2 = four[2 * k + i], u3 = four[3 * k + i];
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
  const normalize = (x, weight) => {
    const y = new Float32Array(x.length);
    for (let r = 0; r < x.length; r += D) {
      let square = 0;
      for (let i = 0; i < D; i++) square += x[r + i] ** 2 / D;
      const scale = 1 / Math.sqrt(square + EPSILON);
      for (let i = 0; i < D; i++) y[r + i] = x[r + i] * scale * weight[i];
    }
    return y;
  };
  const add = (x, y) => x.map((value, n) => value + y[n]);

  // Byte-level BPE: digits one by one, then words with the space before them, then merges by rank.
  class Tokenizer {
    constructor(fields) {
      const [tokens, kinds, merges] = ["tokens", "token_type", "merges"].map(name => fields[`tokenizer.ggml.${name}`]);
      this.tokens = tokens;
      this.ids = new Map(tokens.map((token, id) => [token, id]));
      this.ranks = new Map(merges.map((merge, rank) => [merge, rank]));
      const special = tokens.filter((_, id) => kinds[id] === 3).sort((a, b) => b.length - a.length);
      this.special = new RegExp(`(${special.map(token => token.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&")).join("|")})`);
      // A letter for each byte: itself where it can be seen, one behind all bytes where it can't.
      const seen = byte => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
      let next = 256;
      this.letters = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(seen(byte) ? byte : next++));
      this.bytes = new Map(this.letters.map((letter, byte) => [letter, byte]));
    }
    merge(word) {
      const parts = [...word];
      while (parts.length > 1) {
        let best = Infinity, place = -1;
        for (let i = 0; i + 1 < parts.length; i++) {
          const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
          if (rank < best) [best, place] = [rank, i];
        }
        if (place < 0) break;
        parts.splice(place, 2, parts[place] + parts[place + 1]);
      }
      return parts.map(part => this.ids.get(part)).filter(id => id !== undefined);
    }
    // The ids, the first one before the text.
    encode(text) {
      const ids = [0], WORDS = /'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
      for (const part of text.split(this.special)) {
        if (this.ids.has(part) && this.special.test(part)) { ids.push(this.ids.get(part)); continue; }
        for (const piece of part.split(/(\p{N})/u))
          for (const [word] of piece.matchAll(WORDS))
            ids.push(...this.merge(Array.from(new TextEncoder().encode(word), byte => this.letters[byte]).join("")));
      }
      return ids;
    }
    decode(id) {
      return new TextDecoder().decode(Uint8Array.from(this.tokens[id], letter => this.bytes.get(letter) ?? 63));
    }
  }

  class Model {
    constructor(bytes) {
      const { fields, tensors } = open(bytes);
      this.tokenizer = new Tokenizer(fields);
      const vector = name => {
        const { bytes: of, k } = tensors[name];
        return new Float32Array(of.slice().buffer, 0, k);
      };
      this.words = tensors["token_embd.weight"];
      this.norm = vector("output_norm.weight");
      this.layers = Array.from({ length: LAYERS }, (_, l) => {
        const of = name => tensors[`blk.${l}.${name}.weight`];
        return {
          query: of("attn_q"), key: of("attn_k"), value: of("attn_v"), out: of("attn_output"),
          gate: of("ffn_gate"), up: of("ffn_up"), down: of("ffn_down"),
          attentionNorm: vector(`blk.${l}.attn_norm.weight`), innerNorm: vector(`blk.${l}.ffn_norm.weight`),
        };
      });
    }
    // Adjacent pairs of features turn by an angle that grows with the position.
    turn(x, heads) {
      const width = heads * H;
      for (let at = 0; at < x.length; at += 2) {
        const angle = Math.floor(at / width) * THETA ** (-(at % H) / H);
        const [c, s, a, b] = [Math.cos(angle), Math.sin(angle), x[at], x[at + 1]];
        x[at] = a * c - b * s;
        x[at + 1] = a * s + b * c;
      }
      return x;
    }
    // What attention adds; `off` are the heads of this layer whose output is zero.
    attend(layer, x, T, off) {
      const normal = normalize(x, layer.attentionNorm), found = new Float32Array(T * D), row = new Float64Array(T);
      const q = this.turn(linear(normal, T, layer.query), N), k = this.turn(linear(normal, T, layer.key), K);
      const v = linear(normal, T, layer.value);
      for (let h = 0; h < N; h++) if (!off.includes(h)) for (let i = 0; i < T; i++) {
        const at = i * D + h * H, group = Math.floor(h * K / N) * H;
        let most = -Infinity, sum = 0;
        for (let j = 0; j <= i; j++) {
          let score = 0;
          for (let c = 0; c < H; c++) score += q[at + c] * k[j * K * H + group + c];
          row[j] = score / Math.sqrt(H);
          most = Math.max(most, row[j]);
        }
        for (let j = 0; j <= i; j++) sum += row[j] = Math.exp(row[j] - most);
        for (let j = 0; j <= i; j++)
          for (let c = 0; c < H; c++) found[at + c] += row[j] / sum * v[j * K * H + group + c];
      }
      return linear(found, T, layer.out);
    }
    // SwiGLU: one branch opens the other.
    inner(layer, x, T) {
      const normal = normalize(x, layer.innerNorm);
      const gate = linear(normal, T, layer.gate), up = linear(normal, T, layer.up);
      return linear(gate.map((g, n) => g / (1 + Math.exp(-g)) * up[n]), T, layer.down);
    }
    // The probability of each next token. Layers before the first ablated head are those of the run
    // with all heads, which is kept.
    next(text, heads) {
      const all = this.tokenizer.encode(text), ids = all.length > LONGEST ? [all[0], ...all.slice(1 - LONGEST)] : all, T = ids.length;
      if (this.kept?.text !== text) {
        const x = new Float32Array(T * D);
        ids.forEach((id, t) => row(this.words, id, x, t * D));
        this.kept = { text, inputs: [x] };
      }
      const { inputs } = this.kept, first = Math.min(LAYERS, ...heads.map(([l]) => l));
      const from = Math.min(first, inputs.length - 1), isWhole = !heads.length;
      let x = inputs[from];
      for (let l = from; l < LAYERS; l++) {
        x = add(x, this.attend(this.layers[l], x, T, heads.filter(([at]) => at === l).map(([, h]) => h)));
        x = add(x, this.inner(this.layers[l], x, T));
        if (isWhole || l < first) inputs[l + 1] = x;
      }
      const logits = linear(normalize(x.slice(-D), this.norm), 1, this.words);
      const most = logits.reduce((a, b) => Math.max(a, b)), weights = Float64Array.from(logits, z => Math.exp(z - most));
      const sum = weights.reduce((a, b) => a + b);
      return { all: all.length, chances: weights.map(w => w / sum) };
    }
  }

  // In a worker: the file comes part by part, then texts with heads to ablate, or for their tokens alone.
  const listen = scope => {
    let bytes, filled = 0, model;
    scope.onmessage = ({ data: { size, given, id, text, heads } }) => {
      if (size) bytes = new Uint8Array(size);
      else if (given) {
        const part = atob(given);
        for (let i = 0; i < part.length; i++) bytes[filled++] = part.charCodeAt(i);
        if (filled === bytes.length) model = new Model(bytes);
      } else if (!heads) {
        scope.postMessage({ id, tokens: model.tokenizer.encode(text).map(n => model.tokenizer.tokens[n]) });
      } else {
        const { all, chances } = model.next(text, heads);
        const best = [...chances.keys()].sort((a, b) => chances[b] - chances[a]).slice(0, 5);
        scope.postMessage({ id, all, limit: LONGEST, chances, best, words: best.map(n => model.tokenizer.decode(n)) });
      }
    };
  };
  return { listen };
});
