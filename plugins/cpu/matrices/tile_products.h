// Products of rounded rows with one tile of a packed matrix.
//
// Whatever the instructions, the rows at once and the threads, an output is made by the same operations in the same
// order: for each block the integer sum of codes times codes, which is exact, then a multiply-add of it, scaled, in
// float32.  No operation sees two rows.  So a row's bits depend on that row and the weights, and on nothing else.
// (-ffp-contract=off: a compiler must not fuse what is written as two operations.)

#include "arm_products.h"
#include "avx2_products.h"
#include "avx512_products.h"
#include "avx_vnni_products.h"
#include "portable_products.h"

namespace peagle {

using TileFunction = void (*)(const PackedWeights&, std::int64_t at, const Rows&);
struct Form {
  int most;  // rows at once; a group of more goes in passes of similar sizes
  RoundFunction round;
  TileFunction tile[kMostRows];  // by rows - 1

  // Multiplies rows first .. last - 1 with a tile; y, of `columns` numbers, is of the first, and `stride` from one to the
  // next.
  void multiply(const PackedWeights& weights, std::int64_t at, int columns, const RoundedRows& rounded,
                std::int64_t first, std::int64_t last, float* y, std::int64_t stride) const {
    Fetch fetch = Fetch::kFirstHalf;
    for (std::int64_t row = first; row < last;) {
      const int left = int(std::min(last - row, rounded.left_of_group(row)));
      const int together = left <= most ? left : left <= 2 * most ? (left + 1) / 2 : most;
      if (row == first && row + together == last) fetch = Fetch::kAll;
      const Rows rows{rounded.row(row), rounded.stride(row), weights.blocks, y, stride, columns, fetch};
      tile[together - 1](weights, at, rows);
      fetch = fetch == Fetch::kFirstHalf ? Fetch::kSecondHalf : Fetch::kNone;
      row += together;
      y += together * stride;
    }
  }
};

// None for more rows than a path multiplies at once: each takes its time to compile.
template <template <Format, int> class Path, Format kFormat, int kRows>
TileFunction tile_of() {
  if constexpr (kRows <= Path<kFormat, 1>::kMost) return Path<kFormat, kRows>::tile;
  return nullptr;
}

template <template <Format, int> class Path, Format kFormat>
Form form_of() {
  return {Path<kFormat, 1>::kMost,
          Path<kFormat, 1>::kRound,
          {tile_of<Path, kFormat, 1>(), tile_of<Path, kFormat, 2>(), tile_of<Path, kFormat, 3>(),
           tile_of<Path, kFormat, 4>(), tile_of<Path, kFormat, 5>(), tile_of<Path, kFormat, 6>(),
           tile_of<Path, kFormat, 7>(), tile_of<Path, kFormat, 8>()}};
}

template <template <Format, int> class Path>
Form form_of(Format format) {
  return with_format(format, [](auto tag) { return form_of<Path, decltype(tag)::format>(); });
}

// These take most of the time that the kernels take to compile: tile_products.cpp has them for all units.
#ifdef PEAGLE_X86_64
extern template Form form_of<Avx512Vnni>(Format);
extern template Form form_of<Avx2>(Format);
#endif
#ifdef PEAGLE_AVX_VNNI
extern template Form form_of<AvxVnni>(Format);
#endif
#ifdef PEAGLE_AARCH64
extern template Form form_of<DotProduct>(Format);
#endif
extern template Form form_of<Portable>(Format);

inline Form form_of(Format format, Instructions instructions) {
#ifdef PEAGLE_X86_64
  if (instructions == Instructions::kAvx512Vnni) return form_of<Avx512Vnni>(format);
  if (instructions == Instructions::kAvx2) return form_of<Avx2>(format);
#endif
#ifdef PEAGLE_AVX_VNNI
  if (instructions == Instructions::kAvxVnni) return form_of<AvxVnni>(format);
#endif
#ifdef PEAGLE_AARCH64
  if (instructions == Instructions::kDotProduct) return form_of<DotProduct>(format);
#endif
  return form_of<Portable>(format);
}

}  // namespace peagle
