// Products of quantized rows with one tile of a packed matrix.
//
// Every instruction set, register blocking and thread count performs the same operations in the same order for an
// output: per block, an exact integer dot product of codes, which is scaled and accumulated with a fused multiply-add
// in float32. No operation combines rows. An output row therefore depends, bit for bit, only on its input row and the
// weights. (This requires -ffp-contract=off, so that compilers do not fuse other operations.)

#include "arm_products.h"
#include "avx2_products.h"
#include "avx512_products.h"
#include "avx_vnni_products.h"
#include "portable_products.h"

namespace peagle {

using TileFunction = void (*)(const PackedWeights&, std::int64_t at, const Rows&);
struct TileKernels {
  int max_rows;  // per pass; larger groups take several passes of similar sizes
  RoundFunction round;
  TileFunction tile[kMaxRows];  // by rows - 1

  // Multiplies rows first .. last - 1 with a tile. y [last - first, columns], with `stride` elements between rows.
  void multiply(const PackedWeights& weights, std::int64_t at, int columns, const RoundedRows& rounded,
                std::int64_t first, std::int64_t last, float* y, std::int64_t stride) const {
    Fetch fetch = Fetch::kFirstHalf;
    for (std::int64_t row = first; row < last;) {
      const int rows_left = int(std::min(last - row, rounded.rows_left_in_group(row)));
      const int count = rows_left <= max_rows ? rows_left : rows_left <= 2 * max_rows ? (rows_left + 1) / 2 : max_rows;
      if (row == first && row + count == last) fetch = Fetch::kAll;
      const Rows rows{rounded.row(row), rounded.stride(row), weights.blocks, y, stride, columns, fetch};
      tile[count - 1](weights, at, rows);
      fetch = fetch == Fetch::kFirstHalf ? Fetch::kSecondHalf : Fetch::kNone;
      row += count;
      y += count * stride;
    }
  }
};

// Null for more rows than the path supports per pass: every instantiation costs compile time.
template <template <Format, int> class Path, Format kFormat, int kRows>
TileFunction tile_of() {
  if constexpr (kRows <= Path<kFormat, 1>::kMaxRowsPerPass) return Path<kFormat, kRows>::tile;
  return nullptr;
}

template <template <Format, int> class Path, Format kFormat>
TileKernels tile_kernels() {
  return {Path<kFormat, 1>::kMaxRowsPerPass,
          Path<kFormat, 1>::kRound,
          {tile_of<Path, kFormat, 1>(), tile_of<Path, kFormat, 2>(), tile_of<Path, kFormat, 3>(),
           tile_of<Path, kFormat, 4>(), tile_of<Path, kFormat, 5>(), tile_of<Path, kFormat, 6>(),
           tile_of<Path, kFormat, 7>(), tile_of<Path, kFormat, 8>(), tile_of<Path, kFormat, 9>(),
           tile_of<Path, kFormat, 10>(), tile_of<Path, kFormat, 11>(), tile_of<Path, kFormat, 12>()}};
}

template <template <Format, int> class Path>
TileKernels tile_kernels(Format format) {
  return with_format(format, [](auto tag) { return tile_kernels<Path, decltype(tag)::format>(); });
}

// These instantiations take most of the compile time; they are in tile_products.cpp, for all translation units.
#ifdef PEAGLE_X86_64
extern template TileKernels tile_kernels<Avx512Vnni>(Format);
extern template TileKernels tile_kernels<Avx2>(Format);
#endif
#ifdef PEAGLE_AVX_VNNI
extern template TileKernels tile_kernels<AvxVnni>(Format);
#endif
#ifdef PEAGLE_AARCH64
extern template TileKernels tile_kernels<DotProduct>(Format);
#endif
extern template TileKernels tile_kernels<Portable>(Format);

inline TileKernels tile_kernels(Format format, Instructions instructions) {
#ifdef PEAGLE_X86_64
  if (instructions == Instructions::kAvx512Vnni) return tile_kernels<Avx512Vnni>(format);
  if (instructions == Instructions::kAvx2) return tile_kernels<Avx2>(format);
#endif
#ifdef PEAGLE_AVX_VNNI
  if (instructions == Instructions::kAvxVnni) return tile_kernels<AvxVnni>(format);
#endif
#ifdef PEAGLE_AARCH64
  if (instructions == Instructions::kDotProduct) return tile_kernels<DotProduct>(format);
#endif
  return tile_kernels<Portable>(format);
}

}  // namespace peagle
