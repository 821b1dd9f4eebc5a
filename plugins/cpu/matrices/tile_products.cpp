// The products of every path and format.

#include "tile_products.h"

namespace peagle {

#ifdef PEAGLE_X86_64
template Form form_of<Avx512Vnni>(Format);
template Form form_of<Avx2>(Format);
#endif
#ifdef PEAGLE_AVX_VNNI
template Form form_of<AvxVnni>(Format);
#endif
#ifdef PEAGLE_AARCH64
template Form form_of<DotProduct>(Format);
#endif
template Form form_of<Portable>(Format);

}  // namespace peagle
