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

// Scores of positions, of which first .. last - 1 are seen, become shares: e^(score - top).  Around them, to whole
// vectors, shares are 0.
template <class Products>
__attribute__((always_inline)) inline void share_out(float* __restrict scores, int first, int last, float softcap,
                                                     Attended* attended) {
  float* __restrict from = scores + first / kVector * kVector;
  const int before = first % kVector, end = before + last - first, count = (end + kVector - 1) / kVector * kVector;
  if (softcap > 0.0f) {
    for (int i = 0; i < count; i++) from[i] = softcap * hyperbolic_tangent(from[i] / softcap);
  }
  for (int i = 0; i < before; i++) from[i] = kMinusInfinity;
  for (int i = end; i < count; i++) from[i] = kMinusInfinity;
  attended->top = Products::largest(from, count);
  const float base = base_of(attended->top);
  for (int i = 0; i < count; i++) from[i] = exponential(from[i] - base);
  attended->total = Products::total(from, count);
}

__attribute__((always_inline)) inline void add(const Attended& chunk, int vectors, Attended* before) {
  const float top = chunk.top > before->top ? chunk.top : before->top, base = base_of(top);
  const float old_share = exponential(before->top - base), new_share = exponential(chunk.top - base);
  before->total = __builtin_fmaf(before->total, old_share, chunk.total * new_share);
  before->top = top;
  float* __restrict sums = before->sums();
  const float* __restrict others = chunk.sums();
  for (int i = 0; i < vectors * kVector; i++) sums[i] = __builtin_fmaf(sums[i], old_share, others[i] * new_share);
}

__attribute__((always_inline)) inline void finish(const Attended& all, std::int64_t size, float* __restrict y) {
  const float inverse = 1.0f / all.total, *__restrict sums = all.sums();
  for (std::int64_t i = 0; i < size; i++) y[i] = sums[i] * inverse;
}

// ----------------------------------------------------------------------------------------------------------- the forms

struct Form {
  void (*score)(const float* const*, int, const Positions&, float, float*, int);
  void (*mix[4])(const float*, int, const Positions&, int, int, float*, int);  // by queries - 1
  void (*share_out)(float*, int, int, float, Attended*);
  void (*add)(const Attended&, int, Attended*);
  void (*finish)(const Attended&, std::int64_t, float*);
  void (*widen)(const std::uint16_t*, std::int64_t, float*);
  void (*narrow)(const float*, std::int64_t, std::uint16_t*);
  void (*widen_codes)(const std::int8_t*, std::int64_t, std::int64_t, std::int64_t, float*);
  void (*narrow_codes)(const float*, std::int64_t, std::int8_t*);
};

template <class Products, class Codes>
Form form_of(void (*share_out)(float*, int, int, float, Attended*),
                             void (*add)(const Attended&, int, Attended*),
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
PEAGLE_AVX512_VNNI void share_out_avx512(float* scores, int first, int last, float softcap, Attended* to) {
  share_out<Avx512Products>(scores, first, last, softcap, to);
}
PEAGLE_AVX512_VNNI void add_avx512(const Attended& chunk, int vectors, Attended* before) { add(chunk, vectors, before); }
PEAGLE_AVX512_VNNI void finish_avx512(const Attended& all, std::int64_t size, float* y) { finish(all, size, y); }
PEAGLE_AVX2 void share_out_avx2(float* scores, int first, int last, float softcap, Attended* to) {
  share_out<Avx2Products>(scores, first, last, softcap, to);
}
PEAGLE_AVX2 void add_avx2(const Attended& chunk, int vectors, Attended* before) { add(chunk, vectors, before); }
PEAGLE_AVX2 void finish_avx2(const Attended& all, std::int64_t size, float* y) { finish(all, size, y); }
#endif

inline Form form_of(Instructions instructions) {
#ifdef PEAGLE_X86_64
  if (instructions == Instructions::kAvx512Vnni) {
    return form_of<Avx512Products, Avx512Codes>(share_out_avx512, add_avx512, finish_avx512);
  }
  if (instructions == Instructions::kAvx2) {
    return form_of<Avx2Products, Avx2Codes>(share_out_avx2, add_avx2, finish_avx2);
  }
#endif
  return form_of<PortableProducts, PortableCodes>(share_out<PortableProducts>, add, finish);
}

}  // namespace attention

}  // namespace peagle
