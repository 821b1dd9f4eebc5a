// Instantiates the tile kernels of every instruction set and format in one translation unit.

#include "tile_products.h"

namespace peagle {

#ifdef PEAGLE_X86_64
template TileKernels tile_kernels<Avx512Vnni>(Format);
template TileKernels tile_kernels<Avx2>(Format);
#endif
#ifdef PEAGLE_AVX_VNNI
template TileKernels tile_kernels<AvxVnni>(Format);
#endif
#ifdef PEAGLE_AARCH64
template TileKernels tile_kernels<DotProduct>(Format);
#endif
template TileKernels tile_kernels<Portable>(Format);

}  // namespace peagle
