// The softmax of attention: partial results per chunk, their merge, and the final division. Compiled for each
// instruction set.

#include "attention_products.h"
#include "cache_codes.h"
#include "elementary.h"
#include "instructions.h"

namespace peagle {
namespace attention {

constexpr int kChunk = 64;          // positions
constexpr int kQueryBlock = 32;     // queries that share one pass over a chunk
constexpr int kMaxHeadSize = 512;   // elements
constexpr int kQueriesPerScore = 6, kQueriesPerAccumulate = 6;  // register blocking: more sums would be spilled

// The partial result (m, l, o) of a query over some positions. The accumulator o follows at `kAccumulatorOffset`,
// padded to whole vectors.
struct PartialAttention {
  static constexpr int kAccumulatorOffset = kVector;
  static std::int64_t size(int vectors) { return kAccumulatorOffset + std::int64_t(vectors) * kVector; }
  float max, denominator;
  float* accumulator() { return reinterpret_cast<float*>(this) + kAccumulatorOffset; }
  const float* accumulator() const { return reinterpret_cast<const float*>(this) + kAccumulatorOffset; }
};

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// The value that is subtracted from scores before exponentiation: the maximum, or 0 without visible positions.
__attribute__((always_inline)) inline float softmax_shift(float max) { return max == kMinusInfinity ? 0.0f : max; }

// ------------------------------------------------------------------------------- between the products: partial softmax

// The scores of a chunk [queries, kChunk], the visible positions first .. last - 1 of each query, and its partial
// results, with `stride` floats between them.
struct ChunkScores {
  int queries;
  const int *first, *last;
  float *scores, *partials;
  std::int64_t stride;
  PartialAttention* partial(int query) const { return reinterpret_cast<PartialAttention*>(partials + query * stride); }
};

// Computes e^(x - shift) in place for whole vectors; requires x <= shift.
__attribute__((always_inline)) inline void exponentiate(float* numbers, int vectors, float shift) {
  for (int v = 0; v < vectors; v++, numbers += kVector) {
    for (int i = 0; i < kVector; i++) numbers[i] = exponential_to_one(numbers[i] - shift);
  }
}

// Replaces scores with unnormalized softmax weights e^(score - max), and sets max and denominator of the partial
// results. Weights of invisible positions, up to whole vectors, become 0. Each step handles all queries, which hides
// the latency of the reductions.
template <class Products>
__attribute__((always_inline)) inline void partial_softmax(const ChunkScores& chunk, float softcap) {
  for (int query = 0; query < chunk.queries; query++) {
    const int first = chunk.first[query], before = first % kVector, end = before + chunk.last[query] - first;
    if (first >= chunk.last[query]) continue;
    float* __restrict from = chunk.scores + query * kChunk + first - before;
    const int count = (end + kVector - 1) / kVector * kVector;
    if (softcap > 0.0f) {
      for (int i = 0; i < count; i++) from[i] = softcap * hyperbolic_tangent(from[i] / softcap);
    }
    for (int i = 0; i < before; i++) from[i] = kMinusInfinity;
    for (int i = end; i < count; i++) from[i] = kMinusInfinity;
    chunk.partial(query)->max = Products::reduce_max(from, count);
  }
  for (int query = 0; query < chunk.queries; query++) {
    const int first = chunk.first[query] / kVector * kVector, last = chunk.last[query];
    if (chunk.first[query] >= last) continue;
    float* __restrict from = chunk.scores + query * kChunk + first;
    exponentiate(from, (last - first + kVector - 1) / kVector, softmax_shift(chunk.partial(query)->max));
  }
  for (int query = 0; query < chunk.queries; query++) {
    const int first = chunk.first[query] / kVector * kVector, last = chunk.last[query];
    if (chunk.first[query] >= last) continue;
    chunk.partial(query)->denominator =
        Products::reduce_sum(chunk.scores + query * kChunk + first, (last - first + kVector - 1) / kVector * kVector);
  }
}

// The partial result of a chunk, and the result of the same query so far.
struct Merge {
  const PartialAttention* chunk;
  PartialAttention* result;
};

// Merges the partial results of up to kQueryBlock queries. Computes all weights first: a vector holds those of eight
// queries, and no accumulation waits for an exponential.
__attribute__((always_inline)) inline void merge(const Merge* merges, int count, int vectors) {
  alignas(64) float weights[2 * kQueryBlock];  // alternating: of the result so far, of the chunk
  for (int i = 0; i < count; i++) {
    const float chunk_max = merges[i].chunk->max, result_max = merges[i].result->max;
    const float max = chunk_max > result_max ? chunk_max : result_max, shift = softmax_shift(max);
    weights[2 * i] = result_max - shift;
    weights[2 * i + 1] = chunk_max - shift;
    merges[i].result->max = max;
  }
  const int num_vectors = (2 * count + kVector - 1) / kVector;
  for (int i = 2 * count; i < num_vectors * kVector; i++) weights[i] = 0.0f;
  exponentiate(weights, num_vectors, 0.0f);
  for (int i = 0; i < count; i++) {
    const PartialAttention& chunk = *merges[i].chunk;
    PartialAttention& result = *merges[i].result;
    const float old_weight = weights[2 * i], new_weight = weights[2 * i + 1];
    result.denominator = __builtin_fmaf(result.denominator, old_weight, chunk.denominator * new_weight);
    float* __restrict accumulator = result.accumulator();
    const float* __restrict chunk_accumulator = chunk.accumulator();
    for (int v = 0; v < vectors; v++, accumulator += kVector, chunk_accumulator += kVector) {
      for (int n = 0; n < kVector; n++) {
        accumulator[n] = __builtin_fmaf(accumulator[n], old_weight, chunk_accumulator[n] * new_weight);
      }
    }
  }
}

__attribute__((always_inline)) inline void finish(const PartialAttention& result, std::int64_t size,
                                                  float* __restrict y) {
  const float inverse = 1.0f / result.denominator, *__restrict accumulator = result.accumulator();
  for (std::int64_t i = 0; i < size; i++) y[i] = accumulator[i] * inverse;
}

// ------------------------------------------------------------------------------------- selection of an instruction set

struct Functions {
  void (*score)(const float* const*, int, const Positions&, float, float*, int);
  // By number of queries - 1.
  void (*accumulate[kQueriesPerAccumulate])(const float*, int, const Positions&, int, int, float*, int);
  void (*partial_softmax)(const ChunkScores&, float);
  void (*merge)(const Merge*, int, int);
  void (*finish)(const PartialAttention&, std::int64_t, float*);
  void (*widen)(const std::uint16_t*, std::int64_t, float*);
  void (*narrow)(const float*, std::int64_t, std::uint16_t*);
  void (*widen_codes)(const std::int8_t*, std::int64_t, std::int64_t, std::int64_t, float*);
  void (*narrow_codes)(const float*, std::int64_t, std::int8_t*);
};

template <class Products, class Codes>
Functions functions_for(void (*partial_softmax)(const ChunkScores&, float),
                        void (*merge)(const Merge*, int, int),
                        void (*finish)(const PartialAttention&, std::int64_t, float*)) {
  return {Products::score,
          {Products::template accumulate<1>, Products::template accumulate<2>, Products::template accumulate<3>,
           Products::template accumulate<4>, Products::template accumulate<5>, Products::template accumulate<6>},
          partial_softmax,
          merge,
          finish,
          Products::widen,
          Products::narrow,
          Codes::widen,
          Codes::narrow};
}

#ifdef PEAGLE_X86_64
PEAGLE_AVX512_VNNI void partial_softmax_avx512(const ChunkScores& chunk, float softcap) {
  partial_softmax<Avx512Products>(chunk, softcap);
}
PEAGLE_AVX512_VNNI void merge_avx512(const Merge* merges, int count, int vectors) { merge(merges, count, vectors); }
PEAGLE_AVX512_VNNI void finish_avx512(const PartialAttention& result, std::int64_t size, float* y) {
  finish(result, size, y);
}
PEAGLE_AVX2 void partial_softmax_avx2(const ChunkScores& chunk, float softcap) {
  partial_softmax<Avx2Products>(chunk, softcap);
}
PEAGLE_AVX2 void merge_avx2(const Merge* merges, int count, int vectors) { merge(merges, count, vectors); }
PEAGLE_AVX2 void finish_avx2(const PartialAttention& result, std::int64_t size, float* y) { finish(result, size, y); }
#endif

inline Functions functions_for(Instructions instructions) {
#ifdef PEAGLE_X86_64
  if (instructions == Instructions::kAvx512Vnni) {
    return functions_for<Avx512Products, Avx512Codes>(partial_softmax_avx512, merge_avx512, finish_avx512);
  }
  if (instructions >= Instructions::kAvx2) {
    return functions_for<Avx2Products, Avx2Codes>(partial_softmax_avx2, merge_avx2, finish_avx2);
  }
#endif
#ifdef PEAGLE_AARCH64
  return functions_for<ArmProducts, PortableCodes>(partial_softmax<ArmProducts>, merge, finish);
#else
  return functions_for<PortableProducts, PortableCodes>(partial_softmax<PortableProducts>, merge, finish);
#endif
}

}  // namespace attention

}  // namespace peagle
