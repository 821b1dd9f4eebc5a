// Products of rows with tiles of a packed matrix of float32.
//
// Whatever the instructions, the rows at once and the threads, an output begins with 0, and for each column, in order,
// the product is added to it by one fused multiply-add.  A vector register holds the outputs of one row and one tile;
// no operation sees two rows.  So a row's bits depend on that row and the matrix, and on nothing else.

#include "instructions.h"
#include "intrinsics.h"
#include "packed_weights.h"

namespace peagle {

// Rows x[0 .. kRows - 1], and where their products go: y[row, 0 .. columns - 1], of tiles side by side.
struct WideRows {
  const float* x;
  std::int64_t x_stride;
  float* y;
  std::int64_t y_stride, columns;
};

// a * b + c, rounded once.  Processors of x86 that have no such instruction do it in float64: the product is exact
// there, and the sum is rounded to odd, so that rounding it again cannot tip over (Boldo and Melquiond, 2008).
inline float fused_multiply_add(float a, float b, float c) {
#ifdef PEAGLE_X86_64
  const double product = double(a) * double(b), addend = c;
  double total = product + addend;
  const double back = total - product;
  const double lost = (product - (total - back)) + (addend - back);
  std::int64_t bits;
  std::memcpy(&bits, &total, sizeof bits);
  const std::int64_t away = (lost > 0) == (total > 0) ? 1 : -1;
  bits += ((lost < 0) | (lost > 0)) & (~bits & 1) ? away : 0;  // NaN where the total is not finite: neither
  std::memcpy(&total, &bits, sizeof total);
  return float(total);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

template <int kRows>
struct WidePortable {
  static void multiply_far(const float* tiles, std::int64_t count, std::int64_t depth, const WideRows& rows) {
    multiply(tiles, count, depth, rows);
  }
  static void multiply(const float* tiles, std::int64_t count, std::int64_t depth, const WideRows& rows) {
    for (std::int64_t tile = 0; tile < count; tile++) {
      const float* numbers = tiles + tile * depth * kTile;
      const std::int64_t wanted = std::min<std::int64_t>(kTile, rows.columns - tile * kTile);
      for (int row = 0; row < kRows; row++) {
        const float* x = rows.x + row * rows.x_stride;
        float sums[kTile] = {};
        for (std::int64_t k = 0; k < depth; k++) {
          for (int n = 0; n < kTile; n++) sums[n] = fused_multiply_add(numbers[k * kTile + n], x[k], sums[n]);
        }
        std::memcpy(rows.y + row * rows.y_stride + tile * kTile, sums, std::size_t(wanted) * sizeof(float));
      }
    }
  }
};

#ifdef PEAGLE_X86_64
// Tiles that come from memory, for several rows: one behind the other, in one long run, which is fetched this many bytes
// ahead.  Arithmetic is waited for there by nobody.  (Of four tiles side by side less is read ahead, as what a processor
// has in flight fills up with sums; where a tile meets one row only, it does not.)
constexpr int kWideAhead = 8192;

// Tiles that are near go four at once: sums enough that none waits for the one before it, and fewer reads of x.  Seven or
// eight rows have more of them than there are registers, which costs a little.
template <int kRows>
struct WideAvx512 {
  PEAGLE_AVX512_VNNI static void multiply(const float* tiles, std::int64_t count, std::int64_t depth,
                                          const WideRows& rows) {
    std::int64_t tile = 0;
    for (; tile + kTogether <= count; tile += kTogether) some<kTogether, 0>(tiles, tile, depth, rows);
    for (; tile < count; tile++) some<1, 0>(tiles, tile, depth, rows);
  }
  PEAGLE_AVX512_VNNI static void multiply_far(const float* tiles, std::int64_t count, std::int64_t depth,
                                              const WideRows& rows) {
    if (kRows == 1) return multiply(tiles, count, depth, rows);
    for (std::int64_t tile = 0; tile < count; tile++) some<1, kWideAhead>(tiles, tile, depth, rows);
  }

 private:
  static constexpr int kTogether = 4;

  template <int kTiles, int kAheadOf>
  PEAGLE_AVX512_VNNI static void some(const float* tiles, std::int64_t first, std::int64_t depth,
                                      const WideRows& rows) {
    const float* numbers = tiles + first * depth * kTile;
    __m512 sums[kRows][kTiles];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int t = 0; t < kTiles; t++) sums[row][t] = _mm512_setzero_ps();
    }
    for (std::int64_t k = 0; k < depth; k++) {
      __m512 column[kTiles];
      PEAGLE_UNROLL for (int t = 0; t < kTiles; t++) {
        const float* at = numbers + (t * depth + k) * kTile;
        if (kAheadOf > 0) _mm_prefetch(reinterpret_cast<const char*>(at) + kAheadOf, _MM_HINT_T0);
        column[t] = _mm512_loadu_ps(at);
      }
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m512 x = _mm512_set1_ps(rows.x[row * rows.x_stride + k]);
        PEAGLE_UNROLL for (int t = 0; t < kTiles; t++) sums[row][t] = _mm512_fmadd_ps(column[t], x, sums[row][t]);
      }
    }
    PEAGLE_UNROLL for (int t = 0; t < kTiles; t++) {
      const std::int64_t left = rows.columns - (first + t) * kTile;
      const __mmask16 wanted = __mmask16(left >= kTile ? 0xffff : (1u << left) - 1);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        _mm512_mask_storeu_ps(rows.y + row * rows.y_stride + (first + t) * kTile, wanted, sums[row][t]);
      }
    }
  }
};

// A tile is two registers here, and there are half as many.
template <int kRows>
struct WideAvx2 {
  PEAGLE_AVX2 static void multiply(const float* tiles, std::int64_t count, std::int64_t depth, const WideRows& rows) {
    std::int64_t tile = 0;
    for (; tile + kTogether <= count; tile += kTogether) some<kTogether, 0>(tiles, tile, depth, rows);
    for (; tile < count; tile++) some<1, 0>(tiles, tile, depth, rows);
  }
  PEAGLE_AVX2 static void multiply_far(const float* tiles, std::int64_t count, std::int64_t depth,
                                       const WideRows& rows) {
    if (kRows == 1) return multiply(tiles, count, depth, rows);
    for (std::int64_t tile = 0; tile < count; tile++) some<1, kWideAhead>(tiles, tile, depth, rows);
  }

 private:
  static constexpr int kTogether = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;

  template <int kTiles, int kAheadOf>
  PEAGLE_AVX2 static void some(const float* tiles, std::int64_t first, std::int64_t depth, const WideRows& rows) {
    const float* numbers = tiles + first * depth * kTile;
    __m256 sums[kRows][2 * kTiles];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int h = 0; h < 2 * kTiles; h++) sums[row][h] = _mm256_setzero_ps();
    }
    for (std::int64_t k = 0; k < depth; k++) {
      __m256 column[2 * kTiles];
      PEAGLE_UNROLL for (int h = 0; h < 2 * kTiles; h++) {
        const float* at = numbers + (h / 2 * depth + k) * kTile + h % 2 * (kTile / 2);
        if (kAheadOf > 0 && h % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(at) + kAheadOf, _MM_HINT_T0);
        column[h] = _mm256_loadu_ps(at);
      }
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m256 x = _mm256_set1_ps(rows.x[row * rows.x_stride + k]);
        PEAGLE_UNROLL for (int h = 0; h < 2 * kTiles; h++) sums[row][h] = _mm256_fmadd_ps(column[h], x, sums[row][h]);
      }
    }
    PEAGLE_UNROLL for (int h = 0; h < 2 * kTiles; h++) {
      const std::int64_t from = first * kTile + h * (kTile / 2), left = rows.columns - from;
      if (left <= 0) continue;
      const std::size_t wanted = std::size_t(std::min<std::int64_t>(left, kTile / 2)) * sizeof(float);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        float eight[kTile / 2];
        _mm256_storeu_ps(eight, sums[row][h]);
        std::memcpy(rows.y + row * rows.y_stride + from, eight, wanted);
      }
    }
  }
};
#endif

using WideProduct = void (*)(const float*, std::int64_t, std::int64_t, const WideRows&);
struct WideForm {
  int most;  // rows that are multiplied while tiles are read once
  WideProduct multiply[8], multiply_far[8];  // by rows - 1; far: with tiles that come from memory
};

template <template <int> class Path>
WideForm wide_form(int most) {
  return {most,
          {Path<1>::multiply, Path<2>::multiply, Path<3>::multiply, Path<4>::multiply, Path<5>::multiply,
           Path<6>::multiply, Path<7>::multiply, Path<8>::multiply},
          {Path<1>::multiply_far, Path<2>::multiply_far, Path<3>::multiply_far, Path<4>::multiply_far,
           Path<5>::multiply_far, Path<6>::multiply_far, Path<7>::multiply_far, Path<8>::multiply_far}};
}

inline WideForm wide_form(Instructions instructions) {
#ifdef PEAGLE_X86_64
  if (instructions == Instructions::kAvx512Vnni) return wide_form<WideAvx512>(8);
  if (instructions >= Instructions::kAvx2) return wide_form<WideAvx2>(6);
#endif
  return wide_form<WidePortable>(8);
}

}  // namespace peagle
