// Products of routed experts with matrices of MXFP4 blocks, for the kernels of both of their products.
//
// A choice is a pair of a token and one of its experts. A block of threads groups the choices of a piece of the window by
// expert, so that an expert's rows come from memory once; for every further kTogether tokens of a warp's row they come
// from the cache. A product is the sum of a warp: lane l adds the words l, l + 32, ... of eight columns each, in this
// order, and the lanes are added in pairs. So no bit of a product depends on other tokens, or on how many there are.

namespace peagle {

constexpr int kLanes = 32;
constexpr int kTogether = 4;       // tokens for which a warp reads a row once
constexpr int kAhead = 4;          // words that a lane loads at once of a row
constexpr int kMostChoices = 256;  // of a piece

// Choices by expert, in the order in which experts first occur. `expert` is -1 for all that do not exist.
struct Groups {
  int runs;
  int id[kMostChoices];     // of each choice
  int size[kMostChoices];   // of the run that begins with this choice, or 0
  int place[kMostChoices];  // in `order` of the run that begins with this choice
  int expert[kMostChoices];
  int begin[kMostChoices + 1];
  int order[kMostChoices];
};

// All threads of the block take part; they see the groups once they return.
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
    if (before + groups.size[c] == choices) {  // the last
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

// The number of a code of a word. Its sign comes to the place of a float32's, and the other bits to the lowest of the
// exponent and the highest of the fraction: it is a number that is 2^126 times too small.
__device__ inline float fp4(u32 codes, int i) {
  const int moved = static_cast<int>(codes << (28 - 4 * i)) >> 6;
  return bits_to_float(static_cast<u32>(moved) & 0x81c00000u) * 8.507059173023462e37f;
}

// 2^(exponent - 127) of an E8M0; 255 is NaN.
__device__ inline float power_of_two(u32 exponent) {
  const u32 rest = ((exponent + 1) & 255u) < 2 ? 0x00400000u : 0;  // of 2^-127, which is subnormal, and of NaN
  return bits_to_float(exponent << 23 | rest);
}

template <class Format>
__device__ inline void load_eight(const typename Format::Raw* from, float (&to)[8]) {
  for (int i = 0; i < 8; i += Format::kPerWords) {
    const Words words = *reinterpret_cast<const Words*>(from + i);
    for (int j = 0; j < Format::kPerWords; ++j) to[i + j] = Format::number(words, j);
  }
}

// Two rows of a matrix: codes of eight columns to a word, and an exponent for four words.
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

// The products of two rows with the first `count` of x, in lane t those of x[t]. All lanes of the warp take part.
template <class Format>
__device__ inline void multiply(const TwoRows& rows, int words, const typename Format::Raw* const (&x)[kTogether],
                                int count, float (&products)[2]) {
  const int lane = thread_index() % kLanes;
  float sums[2][kTogether] = {};
  for (int begin = lane; begin < words; begin += kAhead * kLanes) {
    // All loads of codes come before their use: enough of them must be in flight.
    u32 codes[kAhead][2], exponents[kAhead][2];
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int word = begin + ahead * kLanes;
      for (int r = 0; r < 2; ++r) {
        codes[ahead][r] = word < words ? rows.codes[r][word] : 0;
        exponents[ahead][r] = word < words ? rows.exponents[r][word / 4] : 0;
      }
    }
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      const int word = begin + ahead * kLanes;
      if (word >= words) break;
      float weights[2][8];
      for (int r = 0; r < 2; ++r) {
        for (int i = 0; i < 8; ++i) weights[r][i] = fp4(codes[ahead][r], i);
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        if (t >= count) break;
        float numbers[8];
        load_eight<Format>(x[t] + 8 * word, numbers);
        for (int r = 0; r < 2; ++r) {
          float sum = weights[r][0] * numbers[0];
          for (int i = 1; i < 8; ++i) sum = fused(weights[r][i], numbers[i], sum);
          sums[r][t] = fused(sum, power_of_two(exponents[ahead][r]), sums[r][t]);
        }
      }
    }
  }
  products[0] = products[1] = 0.0f;
#pragma unroll
  for (int t = 0; t < kTogether; ++t) {
    if (t >= count) break;
    for (int r = 0; r < 2; ++r) {
      float sum = sums[r][t];
      for (int bits = kLanes / 2; bits > 0; bits /= 2) sum += shuffle_across(sum, bits);
      if (t == lane) products[r] = sum;
    }
  }
}

}  // namespace peagle
