// What queries make of a chunk of positions, and how chunks are put together: scores become shares of what their top score
// leaves, sums are added with the share of each, and the last step divides.  Once for every set of instructions.

#include "attention_products.h"
#include "cache_codes.h"
#include "elementary.h"
#include "instructions.h"

namespace peagle {
namespace attention {

constexpr int kChunk = 64;          // positions
constexpr int kQueriesAtOnce = 32;  // that walk over a chunk together
constexpr int kMostNumbers = 512;   // of a head
constexpr int kScoredAtOnce = 6, kMixedAtOnce = 4;  // queries: more would take sums out of registers

// What a query has made of some of its positions; `kSums` numbers on lie the sums o, filled up to whole vectors.
struct Attended {
  static constexpr int kSums = kVector;
  static std::int64_t numbers(int vectors) { return kSums + std::int64_t(vectors) * kVector; }
  float top, total;
  float* sums() { return reinterpret_cast<float*>(this) + kSums; }
  const float* sums() const { return reinterpret_cast<const float*>(this) + kSums; }
};

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Exponents are taken from this on: from the top score, unless there is none.
__attribute__((always_inline)) inline float base_of(float top) { return top == kMinusInfinity ? 0.0f : top; }

// ------------------------------------------------------------------------ what is between the products, on every path

// What queries see of a chunk: positions first .. last - 1 each.  Rows of scores are chunks; results lie `stride` apart.
struct Seen {
  int queries;
  const int *first, *last;
  float *scores, *attended;
  std::int64_t stride;
  Attended* result(int query) const { return reinterpret_cast<Attended*>(attended + query * stride); }
};

// e^(number - base) in place, of whole vectors; no number is above the base.
__attribute__((always_inline)) inline void exponentials(float* numbers, int vectors, float base) {
  for (int v = 0; v < vectors; v++, numbers += kVector) {
    for (int i = 0; i < kVector; i++) numbers[i] = exponential_to_one(numbers[i] - base);
  }
}

// Scores become shares: e^(score - top).  Around what is seen, to whole vectors, shares are 0.  Step by step for all
// queries: one waits long for its top score and its total.
template <class Products>
__attribute__((always_inline)) inline void share_out(const Seen& seen, float softcap) {
  for (int query = 0; query < seen.queries; query++) {
    const int first = seen.first[query], before = first % kVector, end = before + seen.last[query] - first;
    if (first >= seen.last[query]) continue;
    float* __restrict from = seen.scores + query * kChunk + first - before;
    const int count = (end + kVector - 1) / kVector * kVector;
    if (softcap > 0.0f) {
      for (int i = 0; i < count; i++) from[i] = softcap * hyperbolic_tangent(from[i] / softcap);
    }
    for (int i = 0; i < before; i++) from[i] = kMinusInfinity;
    for (int i = end; i < count; i++) from[i] = kMinusInfinity;
    seen.result(query)->top = Products::largest(from, count);
  }
  for (int query = 0; query < seen.queries; query++) {
    const int first = seen.first[query] / kVector * kVector, last = seen.last[query];
    if (seen.first[query] >= last) continue;
    float* __restrict from = seen.scores + query * kChunk + first;
    exponentials(from, (last - first + kVector - 1) / kVector, base_of(seen.result(query)->top));
  }
  for (int query = 0; query < seen.queries; query++) {
    const int first = seen.first[query] / kVector * kVector, last = seen.last[query];
    if (seen.first[query] >= last) continue;
    seen.result(query)->total =
        Products::total(seen.scores + query * kChunk + first, (last - first + kVector - 1) / kVector * kVector);
  }
}

// Adds chunks of a query that lie `stride` numbers apart, in their order.  What the shares of each are is known before the
// sums, so that no sum waits for an exponential.
__attribute__((always_inline)) inline void add(const float* chunks, std::int64_t count, std::int64_t stride, int vectors,
                                               Attended* before) {
  constexpr int kAtOnce = 32;
  for (; count > 0; count -= kAtOnce, chunks += kAtOnce * stride) {
    const int here = int(std::min<std::int64_t>(count, kAtOnce));
    alignas(64) float shares[2 * kAtOnce + kVector] = {};  // of what was before and of the chunk, in turn
    for (int i = 0; i < here; i++) {
      const float other = reinterpret_cast<const Attended*>(chunks + i * stride)->top;
      const float top = other > before->top ? other : before->top, base = base_of(top);
      shares[2 * i] = before->top - base;
      shares[2 * i + 1] = other - base;
      before->top = top;
    }
    exponentials(shares, (2 * here + kVector - 1) / kVector, 0.0f);
    for (int i = 0; i < here; i++) {
      const auto& chunk = *reinterpret_cast<const Attended*>(chunks + i * stride);
      const float old_share = shares[2 * i], new_share = shares[2 * i + 1];
      before->total = __builtin_fmaf(before->total, old_share, chunk.total * new_share);
      float* __restrict sums = before->sums();
      const float* __restrict others = chunk.sums();
      for (int v = 0; v < vectors; v++, sums += kVector, others += kVector) {
        for (int n = 0; n < kVector; n++) sums[n] = __builtin_fmaf(sums[n], old_share, others[n] * new_share);
      }
    }
  }
}

__attribute__((always_inline)) inline void finish(const Attended& all, std::int64_t size, float* __restrict y) {
  const float inverse = 1.0f / all.total, *__restrict sums = all.sums();
  for (std::int64_t i = 0; i < size; i++) y[i] = sums[i] * inverse;
}

// ----------------------------------------------------------------------------------------------------------- the forms

struct Form {
  void (*score)(const float* const*, int, const Positions&, float, float*, int);
  void (*mix[kMixedAtOnce])(const float*, int, const Positions&, int, int, float*, int);  // by queries - 1
  void (*share_out)(const Seen&, float);
  void (*add)(const float*, std::int64_t, std::int64_t, int, Attended*);
  void (*finish)(const Attended&, std::int64_t, float*);
  void (*widen)(const std::uint16_t*, std::int64_t, float*);
  void (*narrow)(const float*, std::int64_t, std::uint16_t*);
  void (*widen_codes)(const std::int8_t*, std::int64_t, std::int64_t, std::int64_t, float*);
  void (*narrow_codes)(const float*, std::int64_t, std::int8_t*);
};

template <class Products, class Codes>
Form form_of(void (*share_out)(const Seen&, float),
             void (*add)(const float*, std::int64_t, std::int64_t, int, Attended*),
             void (*finish)(const Attended&, std::int64_t, float*)) {
  return {Products::score,
          {Products::template mix<1>, Products::template mix<2>, Products::template mix<3>, Products::template mix<4>},
          share_out,
          add,
          finish,
          Products::widen,
          Products::narrow,
          Codes::widen,
          Codes::narrow};
}

#ifdef PEAGLE_X86_64
PEAGLE_AVX512_VNNI void share_out_avx512(const Seen& seen, float softcap) { share_out<Avx512Products>(seen, softcap); }
PEAGLE_AVX512_VNNI void add_avx512(const float* chunks, std::int64_t count, std::int64_t stride, int vectors, Attended* before) {
  add(chunks, count, stride, vectors, before);
}
PEAGLE_AVX512_VNNI void finish_avx512(const Attended& all, std::int64_t size, float* y) { finish(all, size, y); }
PEAGLE_AVX2 void share_out_avx2(const Seen& seen, float softcap) { share_out<Avx2Products>(seen, softcap); }
PEAGLE_AVX2 void add_avx2(const float* chunks, std::int64_t count, std::int64_t stride, int vectors, Attended* before) {
  add(chunks, count, stride, vectors, before);
}
PEAGLE_AVX2 void finish_avx2(const Attended& all, std::int64_t size, float* y) { finish(all, size, y); }
#endif

inline Form form_of(Instructions instructions) {
#ifdef PEAGLE_X86_64
  if (instructions == Instructions::kAvx512Vnni) {
    return form_of<Avx512Products, Avx512Codes>(share_out_avx512, add_avx512, finish_avx512);
  }
  if (instructions >= Instructions::kAvx2) {
    return form_of<Avx2Products, Avx2Codes>(share_out_avx2, add_avx2, finish_avx2);
  }
#endif
#ifdef PEAGLE_AARCH64
  return form_of<ArmProducts, PortableCodes>(share_out<ArmProducts>, add, finish);
#else
  return form_of<PortableProducts, PortableCodes>(share_out<PortableProducts>, add, finish);
#endif
}

}  // namespace attention

}  // namespace peagle
