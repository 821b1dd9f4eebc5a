// Mxfp4GateUp: see reference.py. Each warp of the grid computes one gate and up pair of one expert at a time.

namespace peagle {

// e^x; 0 for x < -104, infinity for x > 88.73, NaN for NaN. The same operations as `exponential` in cpu/elementary.h.
__device__ inline float exponential(float x) {
  x = at_most(at_least(x, -104.0f), 89.0f);
  const float rounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer, ties to even
  const float shifted = fused(x, 1.44269504088896341f, rounder), whole = shifted - rounder;
  const float rest = fused(whole, -1.42860682030941723e-6f, fused(whole, -0.693145751953125f, x));
  const float terms[] = {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f};
  float power = 1.0f / 5040.0f;
  for (float term : terms) power = fused(power, rest, term);
  // Multiply by 2^whole in two steps, because one float cannot represent the whole range of 2^-149 to 2^128.
  const u32 exponent = float_to_bits(shifted) - 0x4b400000u + 300u, half = exponent >> 1;
  return power * bits_to_float((half - 23u) << 23) * bits_to_float((exponent - half - 23u) << 23);
}

template <class Format>
__device__ inline void gate_up(const typename Format::Raw* x, const i64* experts, const signed char* codes,
                               const signed char* exponents, const typename Format::Raw* bias, float alpha, float beta,
                               float limit, int tokens, int hidden, int chosen, int count, int width, float* inner) {
  PEAGLE_SHARED(Groups, groups);
  const int lane = thread_index() % kLanes, warps_per_block = block_size() / kLanes, words = hidden / 8;
  const int warp = block_index() * warps_per_block + thread_index() / kLanes;
  const int warps = width * warps_per_block;  // the number of blocks in spec.py
  const int tokens_per_piece = kMaxChoices / chosen;
  for (int first = 0; first < tokens; first += tokens_per_piece) {
    const int choices = at_most(tokens - first, tokens_per_piece) * chosen;
    group(experts + static_cast<i64>(first) * chosen, choices, count, groups);
    for (int item = warp; item < groups.runs * width; item += warps) {
      const int run = item / width, column = item % width, expert = groups.expert[run], end = groups.begin[run + 1];
      const i64 row = static_cast<i64>(at_least(expert, 0)) * width + column;
      const TwoRows rows(codes, exponents, 2 * row, 2 * row + 1, words);
      const float gate_bias = Format::widen(bias[2 * row]), up_bias = Format::widen(bias[2 * row + 1]);
      for (int at = groups.begin[run]; at < end; at += kTokensPerPass) {
        const int num_tokens = at_most(end - at, kTokensPerPass);
        const typename Format::Raw* token_rows[kTokensPerPass];
        for (int t = 0; t < kTokensPerPass; ++t) {
          const int token = first + groups.order[at_most(at + t, end - 1)] / chosen;
          token_rows[t] = x + static_cast<i64>(token) * hidden;
        }
        float products[2];
        multiply<Format>(rows, words, token_rows, num_tokens, products);
        if (lane >= num_tokens) continue;
        const float gate = at_most(products[0] + gate_bias, limit);
        const float up = within(products[1] + up_bias, -limit, limit);
        const float gated = (up + beta) * (gate / (1.0f + exponential(-(alpha * gate))));
        const i64 choice = static_cast<i64>(first) * chosen + groups.order[at + lane];
        inner[choice * width + column] = expert < 0 ? bits_to_float(0x7fc00000u) : gated;
      }
    }
    sync_block();  // before `group` overwrites the groups
  }
}

}  // namespace peagle

#define PEAGLE_GATE_UP(dtype, Format)                                                                                  \
  extern "C" __global__ void __launch_bounds__(128, 5) mxfp4_gate_up_##dtype(                                          \
      const peagle::Format::Raw* __restrict__ x, const long long* __restrict__ experts,                                \
      const signed char* __restrict__ codes, const signed char* __restrict__ exponents,                                \
      const peagle::Format::Raw* __restrict__ bias, const float* __restrict__ alpha, const float* __restrict__ beta,   \
      const float* __restrict__ limit, int tokens, int hidden, int chosen, int count, int width,                       \
      float* __restrict__ inner) {                                                                                     \
    peagle::gate_up<peagle::Format>(x, experts, codes, exponents, bias, *alpha, *beta, *limit, tokens, hidden, chosen, \
                                    count, width, inner);                                                              \
  }

PEAGLE_GATE_UP(float32, Float32)
PEAGLE_GATE_UP(float16, Float16)
PEAGLE_GATE_UP(bfloat16, BFloat16)
