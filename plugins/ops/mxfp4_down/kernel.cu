// Mxfp4Down: see reference.py. One block computes two columns of y; its warps process different experts.

namespace peagle {

struct Down {
  Groups groups;
  float products[2][kMaxChoices];
};

template <class Format>
__device__ inline void down(const float* inner, const i64* experts, const typename Format::Raw* scores,
                            const signed char* codes, const signed char* exponents, const typename Format::Raw* bias,
                            int tokens, int chosen, int width, int count, int hidden, typename Format::Raw* y) {
  PEAGLE_SHARED(Down, shared);
  Groups& groups = shared.groups;
  const int column = 2 * block_index();
  if (column >= hidden) return;
  const int columns = at_most(hidden - column, 2);
  const int lane = thread_index() % kLanes, warps_per_block = block_size() / kLanes, words = width / 8;
  const int tokens_per_piece = kMaxChoices / chosen;
  for (int first = 0; first < tokens; first += tokens_per_piece) {
    const int piece_tokens = at_most(tokens - first, tokens_per_piece);
    const i64 first_choice = static_cast<i64>(first) * chosen;
    group(experts + first_choice, piece_tokens * chosen, count, groups);
    for (int run = thread_index() / kLanes; run < groups.runs; run += warps_per_block) {
      const int expert = groups.expert[run], end = groups.begin[run + 1];
      const i64 row = static_cast<i64>(at_least(expert, 0)) * hidden + column, second = row + columns - 1;
      const TwoRows rows(codes, exponents, row, second, words);
      const float biases[2] = {Format::widen(bias[row]), Format::widen(bias[second])};
      for (int at = groups.begin[run]; at < end; at += kTokensPerPass) {
        const int num_tokens = at_most(end - at, kTokensPerPass);
        const float* choice_rows[kTokensPerPass];
        for (int t = 0; t < kTokensPerPass; ++t) {
          choice_rows[t] = inner + (first_choice + groups.order[at_most(at + t, end - 1)]) * width;
        }
        float products[2];
        multiply<Float32>(rows, words, choice_rows, num_tokens, products);
        if (lane >= num_tokens) continue;
        for (int r = 0; r < 2; ++r) {
          const float product = products[r] + biases[r];
          shared.products[r][groups.order[at + lane]] = expert < 0 ? bits_to_float(0x7fc00000u) : product;
        }
      }
    }
    sync_block();
    for (int i = thread_index(); i < piece_tokens * columns; i += block_size()) {
      const int token = i / columns, r = i % columns;
      float sum = 0.0f;
      for (int choice = token * chosen; choice < (token + 1) * chosen; ++choice) {
        sum = fused(Format::widen(scores[first_choice + choice]), shared.products[r][choice], sum);
      }
      y[static_cast<i64>(first + token) * hidden + column + r] = Format::narrow(sum);
    }
    sync_block();  // before `group` overwrites the groups
  }
}

}  // namespace peagle

#define PEAGLE_DOWN(dtype, Format)                                                                                     \
  extern "C" __global__ void __launch_bounds__(128, 4) mxfp4_down_##dtype(                                             \
      const float* __restrict__ inner, const long long* __restrict__ experts,                                          \
      const peagle::Format::Raw* __restrict__ scores, const signed char* __restrict__ codes,                           \
      const signed char* __restrict__ exponents, const peagle::Format::Raw* __restrict__ bias, int tokens, int chosen, \
      int width, int count, int hidden, peagle::Format::Raw* __restrict__ y) {                                         \
    peagle::down<peagle::Format>(inner, experts, scores, codes, exponents, bias, tokens, chosen, width, count, hidden, \
                                 y);                                                                                   \
  }

PEAGLE_DOWN(float32, Float32)
PEAGLE_DOWN(float16, Float16)
PEAGLE_DOWN(bfloat16, BFloat16)
