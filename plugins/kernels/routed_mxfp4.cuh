// Products with the MXFP4 matrices of routed experts, shared by Mxfp4GateUp and Mxfp4Down.
//
// A choice is a pair of a token and one of its experts. A thread block groups the choices of one piece of the window by
// expert, so an expert's rows are read from memory once; if more than kTokensPerPass tokens chose the expert, later
// passes read the rows from the cache. A warp computes a product: lane l accumulates the words l, l + 32, ... (eight
// columns each) in order, then the lanes are reduced pairwise. A product is therefore bitwise independent of other
// tokens and of their number.

namespace peagle {

constexpr int kLanes = 32;
constexpr int kTokensPerPass = 4;  // tokens that share one read of a row by a warp
constexpr int kWordsInFlight = 4;  // words of a row that a lane loads before it uses them
constexpr int kMaxChoices = 256;   // per piece

// The choices grouped by expert into runs, in the order of each expert's first choice. Run r consists of the choices
// order[begin[r]] .. order[begin[r + 1] - 1]. `expert` is -1 for choices of invalid experts.
struct Groups {
  int runs;
  int id[kMaxChoices];     // expert of each choice, or -1
  int size[kMaxChoices];   // size of the run that starts with this choice; 0 if none does
  int place[kMaxChoices];  // index in `order` of the run that starts with this choice
  int expert[kMaxChoices];
  int begin[kMaxChoices + 1];
  int order[kMaxChoices];
};

// Called by all threads of the block; ends with a barrier.
__device__ inline void group(const i64* experts, int choices, int count, Groups& groups) {
  const int thread = thread_index(), step = block_size();
  for (int c = thread; c < choices; c += step) {
    groups.id[c] = experts[c] >= 0 && experts[c] < count ? static_cast<int>(experts[c]) : -1;
  }
  sync_block();
  for (int c = thread; c < choices; c += step) {
    int first = c, size = 0;
    for (int other = choices - 1; other >= 0; --other) {
      if (groups.id[other] != groups.id[c]) continue;
      first = other;
      ++size;
    }
    groups.size[c] = first == c ? size : 0;
  }
  sync_block();
  for (int c = thread; c < choices; c += step) {
    if (groups.size[c] == 0) continue;
    int run = 0, before = 0;
    for (int other = 0; other < c; ++other) {
      run += groups.size[other] > 0;
      before += groups.size[other];
    }
    groups.expert[run] = groups.id[c];
    groups.begin[run] = before;
    groups.place[c] = before;
    if (before + groups.size[c] == choices) {  // last run
      groups.runs = run + 1;
      groups.begin[run + 1] = choices;
    }
  }
  sync_block();
  for (int c = thread; c < choices; c += step) {
    int first = c, earlier = 0;
    for (int other = c - 1; other >= 0; --other) {
      if (groups.id[other] != groups.id[c]) continue;
      first = other;
      ++earlier;
    }
    groups.order[groups.place[first] + earlier] = c;
  }
  sync_block();
}

// Decodes the i-th 4-bit code (E2M1) of a word. The sign bit moves to that of a float32; the other bits move to the
// lowest bits of the exponent and the highest bit of the fraction. The result is multiplied by 2^126.
__device__ inline float fp4(u32 codes, int i) {
  const int shifted = static_cast<int>(codes << (28 - 4 * i)) >> 6;
  return bits_to_float(static_cast<u32>(shifted) & 0x81c00000u) * 8.507059173023462e37f;
}

// Decodes E8M0: 2^(exponent - 127); NaN for 255.
__device__ inline float power_of_two(u32 exponent) {
  const u32 fraction = ((exponent + 1) & 255u) < 2 ? 0x00400000u : 0;  // for 2^-127, which is subnormal, and NaN
  return bits_to_float(exponent << 23 | fraction);
}

template <class Format>
__device__ inline void load_eight(const typename Format::Raw* from, float (&to)[8]) {
  for (int i = 0; i < 8; i += Format::kPerWords) {
    const Words words = *reinterpret_cast<const Words*>(from + i);
    for (int j = 0; j < Format::kPerWords; ++j) to[i + j] = Format::number(words, j);
  }
}

// Two rows of a matrix: one word per eight codes, and one exponent per four words.
struct TwoRows {
  const u32* codes[2];
  const unsigned char* exponents[2];

  __device__ inline TwoRows(const signed char* all_codes, const signed char* all_exponents, i64 first, i64 second,
                            int words) {
    const i64 rows[2] = {first, second};
    for (int r = 0; r < 2; ++r) {
      codes[r] = reinterpret_cast<const u32*>(all_codes) + rows[r] * words;
      exponents[r] = reinterpret_cast<const unsigned char*>(all_exponents) + rows[r] * (words / 4);
    }
  }
};

// Multiplies two rows with x[0 .. count - 1]; lane t receives the products of x[t]. All lanes must take part.
template <class Format>
__device__ inline void multiply(const TwoRows& rows, int words, const typename Format::Raw* const (&x)[kTokensPerPass],
                                int count, float (&products)[2]) {
  const int lane = thread_index() % kLanes;
  float sums[2][kTokensPerPass] = {};
  for (int begin = lane; begin < words; begin += kWordsInFlight * kLanes) {
    // Load all codes before using any, to keep enough loads in flight.
    u32 codes[kWordsInFlight][2], exponents[kWordsInFlight][2];
#pragma unroll
    for (int slot = 0; slot < kWordsInFlight; ++slot) {
      const int word = begin + slot * kLanes;
      for (int r = 0; r < 2; ++r) {
        codes[slot][r] = word < words ? rows.codes[r][word] : 0;
        exponents[slot][r] = word < words ? rows.exponents[r][word / 4] : 0;
      }
    }
#pragma unroll
    for (int slot = 0; slot < kWordsInFlight; ++slot) {
      const int word = begin + slot * kLanes;
      if (word >= words) break;
      float weights[2][8];
      for (int r = 0; r < 2; ++r) {
        for (int i = 0; i < 8; ++i) weights[r][i] = fp4(codes[slot][r], i);
      }
#pragma unroll
      for (int t = 0; t < kTokensPerPass; ++t) {
        if (t >= count) break;
        float values[8];
        load_eight<Format>(x[t] + 8 * word, values);
        for (int r = 0; r < 2; ++r) {
          float sum = weights[r][0] * values[0];
          for (int i = 1; i < 8; ++i) sum = fused(weights[r][i], values[i], sum);
          sums[r][t] = fused(sum, power_of_two(exponents[slot][r]), sums[r][t]);
        }
      }
    }
  }
  products[0] = products[1] = 0.0f;
#pragma unroll
  for (int t = 0; t < kTokensPerPass; ++t) {
    if (t >= count) break;
    for (int r = 0; r < 2; ++r) {
      float sum = sums[r][t];
      for (int bits = kLanes / 2; bits > 0; bits /= 2) sum += shuffle_across(sum, bits);
      if (t == lane) products[r] = sum;
    }
  }
}

}  // namespace peagle
