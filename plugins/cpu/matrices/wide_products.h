// Products of float32 rows with tiles of a packed float32 matrix.
//
// Every instruction set, register blocking and thread count computes an output the same way: starting from 0, one fused
// multiply-add per column, in order. No operation combines rows. An output row therefore depends, bit for bit, only on
// its input row and the matrix.

#include "instructions.h"
#include "intrinsics.h"
#include "packed_weights.h"

namespace peagle {

// Rows x [kRows, depth] and the output y [kRows, columns], which may span several tiles. Strides are in elements.
struct WideRows {
  const float* x;
  std::int64_t x_stride;
  float* y;
  std::int64_t y_stride, columns;
};

// a * b + c, rounded once. Portable code on x86 cannot use the FMA instruction and computes in float64: the product is
// exact, and the sum is rounded to odd, which makes the second rounding correct (Boldo and Melquiond, 2008).
inline float fused_multiply_add(float a, float b, float c) {
#ifdef PEAGLE_X86_64
  const double product = double(a) * double(b), addend = c;
  double total = product + addend;
  const double rounded_addend = total - product;
  const double error = (product - (total - rounded_addend)) + (addend - rounded_addend);
  std::int64_t bits;
  std::memcpy(&bits, &total, sizeof bits);
  const std::int64_t toward_odd = (error > 0) == (total > 0) ? 1 : -1;
  bits += ((error < 0) | (error > 0)) & (~bits & 1) ? toward_odd : 0;  // neither if `error` is NaN (non-finite total)
  std::memcpy(&total, &bits, sizeof total);
  return float(total);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

template <int kRows>
struct WidePortable {
  static void multiply_streaming(const float* tiles, std::int64_t count, std::int64_t depth, const WideRows& rows) {
    multiply(tiles, count, depth, rows);
  }
  static void multiply(const float* tiles, std::int64_t count, std::int64_t depth, const WideRows& rows) {
    for (std::int64_t tile = 0; tile < count; tile++) {
      const float* numbers = tiles + tile * depth * kTile;
      const std::int64_t columns = std::min<std::int64_t>(kTile, rows.columns - tile * kTile);
      for (int row = 0; row < kRows; row++) {
        const float* x = rows.x + row * rows.x_stride;
        float sums[kTile] = {};
        for (std::int64_t k = 0; k < depth; k++) {
          for (int n = 0; n < kTile; n++) sums[n] = fused_multiply_add(numbers[k * kTile + n], x[k], sums[n]);
        }
        std::memcpy(rows.y + row * rows.y_stride + tile * kTile, sums, std::size_t(columns) * sizeof(float));
      }
    }
  }
};

#ifdef PEAGLE_X86_64
// Prefetch distance for tiles that are streamed from memory. With several rows, tiles are processed one at a time, as
// one sequential stream; memory, not arithmetic, is the bottleneck. (Four tiles side by side would read less far ahead,
// because additions fill the reorder buffer. With a single row, this does not happen.)
constexpr int kWidePrefetchBytes = 8192;

// Cached tiles are processed four at a time: enough independent accumulators to hide the latency, and fewer loads of x.
// With seven or eight rows, the accumulators exceed the registers, which costs little.
template <int kRows>
struct WideAvx512 {
  PEAGLE_AVX512_VNNI static void multiply(const float* tiles, std::int64_t count, std::int64_t depth,
                                          const WideRows& rows) {
    std::int64_t tile = 0;
    for (; tile + kTilesPerPass <= count; tile += kTilesPerPass)
      multiply_tiles<kTilesPerPass, 0>(tiles, tile, depth, rows);
    for (; tile < count; tile++) multiply_tiles<1, 0>(tiles, tile, depth, rows);
  }
  PEAGLE_AVX512_VNNI static void multiply_streaming(const float* tiles, std::int64_t count, std::int64_t depth,
                                              const WideRows& rows) {
    if (kRows == 1) return multiply(tiles, count, depth, rows);
    for (std::int64_t tile = 0; tile < count; tile++) multiply_tiles<1, kWidePrefetchBytes>(tiles, tile, depth, rows);
  }

 private:
  static constexpr int kTilesPerPass = 4;

  template <int kTiles, int kPrefetch>
  PEAGLE_AVX512_VNNI static void multiply_tiles(const float* tiles, std::int64_t first, std::int64_t depth,
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
        if (kPrefetch > 0) _mm_prefetch(reinterpret_cast<const char*>(at) + kPrefetch, _MM_HINT_T0);
        column[t] = _mm512_loadu_ps(at);
      }
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m512 x = _mm512_set1_ps(rows.x[row * rows.x_stride + k]);
        PEAGLE_UNROLL for (int t = 0; t < kTiles; t++) sums[row][t] = _mm512_fmadd_ps(column[t], x, sums[row][t]);
      }
    }
    PEAGLE_UNROLL for (int t = 0; t < kTiles; t++) {
      const std::int64_t columns_left = rows.columns - (first + t) * kTile;
      const __mmask16 mask = __mmask16(columns_left >= kTile ? 0xffff : (1u << columns_left) - 1);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        _mm512_mask_storeu_ps(rows.y + row * rows.y_stride + (first + t) * kTile, mask, sums[row][t]);
      }
    }
  }
};

// A tile takes two registers, and there are 16 instead of 32.
template <int kRows>
struct WideAvx2 {
  PEAGLE_AVX2 static void multiply(const float* tiles, std::int64_t count, std::int64_t depth, const WideRows& rows) {
    std::int64_t tile = 0;
    for (; tile + kTilesPerPass <= count; tile += kTilesPerPass)
      multiply_tiles<kTilesPerPass, 0>(tiles, tile, depth, rows);
    for (; tile < count; tile++) multiply_tiles<1, 0>(tiles, tile, depth, rows);
  }
  PEAGLE_AVX2 static void multiply_streaming(const float* tiles, std::int64_t count, std::int64_t depth,
                                       const WideRows& rows) {
    if (kRows == 1) return multiply(tiles, count, depth, rows);
    for (std::int64_t tile = 0; tile < count; tile++) multiply_tiles<1, kWidePrefetchBytes>(tiles, tile, depth, rows);
  }

 private:
  static constexpr int kTilesPerPass = kRows == 1 ? 4 : kRows == 2 ? 2 : 1;

  template <int kTiles, int kPrefetch>
  PEAGLE_AVX2 static void multiply_tiles(const float* tiles, std::int64_t first, std::int64_t depth,
                                         const WideRows& rows) {
    const float* numbers = tiles + first * depth * kTile;
    __m256 sums[kRows][2 * kTiles];
    PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
      PEAGLE_UNROLL for (int h = 0; h < 2 * kTiles; h++) sums[row][h] = _mm256_setzero_ps();
    }
    for (std::int64_t k = 0; k < depth; k++) {
      __m256 column[2 * kTiles];
      PEAGLE_UNROLL for (int h = 0; h < 2 * kTiles; h++) {
        const float* at = numbers + (h / 2 * depth + k) * kTile + h % 2 * (kTile / 2);
        if (kPrefetch > 0 && h % 2 == 0) _mm_prefetch(reinterpret_cast<const char*>(at) + kPrefetch, _MM_HINT_T0);
        column[h] = _mm256_loadu_ps(at);
      }
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        const __m256 x = _mm256_set1_ps(rows.x[row * rows.x_stride + k]);
        PEAGLE_UNROLL for (int h = 0; h < 2 * kTiles; h++) sums[row][h] = _mm256_fmadd_ps(column[h], x, sums[row][h]);
      }
    }
    PEAGLE_UNROLL for (int h = 0; h < 2 * kTiles; h++) {
      const std::int64_t from = first * kTile + h * (kTile / 2), columns_left = rows.columns - from;
      if (columns_left <= 0) continue;
      const std::size_t bytes = std::size_t(std::min<std::int64_t>(columns_left, kTile / 2)) * sizeof(float);
      PEAGLE_UNROLL for (int row = 0; row < kRows; row++) {
        float eight[kTile / 2];
        _mm256_storeu_ps(eight, sums[row][h]);
        std::memcpy(rows.y + row * rows.y_stride + from, eight, bytes);
      }
    }
  }
};
#endif

using WideProduct = void (*)(const float*, std::int64_t, std::int64_t, const WideRows&);
struct WideKernels {
  int max_rows;  // per pass over the tiles
  WideProduct multiply[8], multiply_streaming[8];  // by rows - 1; streaming: for tiles that are not in the cache
};

template <template <int> class Path>
WideKernels wide_kernels(int max_rows) {
  return {max_rows,
          {Path<1>::multiply, Path<2>::multiply, Path<3>::multiply, Path<4>::multiply, Path<5>::multiply,
           Path<6>::multiply, Path<7>::multiply, Path<8>::multiply},
          {Path<1>::multiply_streaming, Path<2>::multiply_streaming, Path<3>::multiply_streaming,
           Path<4>::multiply_streaming, Path<5>::multiply_streaming, Path<6>::multiply_streaming,
           Path<7>::multiply_streaming, Path<8>::multiply_streaming}};
}

inline WideKernels wide_kernels(Instructions instructions) {
#ifdef PEAGLE_X86_64
  if (instructions == Instructions::kAvx512Vnni) return wide_kernels<WideAvx512>(8);
  if (instructions >= Instructions::kAvx2) return wide_kernels<WideAvx2>(6);
#endif
  return wide_kernels<WidePortable>(8);
}

}  // namespace peagle
