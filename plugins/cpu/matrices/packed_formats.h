// One record per format of packed matrices; the counterpart of plugins/ops/quantized_linear/packed_formats.py.

#include "tensor.h"

namespace peagle {

constexpr int kTile = 16, kBlock = 32, kGroup = 4, kGroups = kBlock / kGroup;
constexpr int kGroupBytes = kTile * kGroup;
constexpr int kSuperblock = 8;  // blocks

enum class Format { kInt8, kQ8_0, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ4K, kQ5K, kQ6K, kIq4Nl, kMxfp4 };

// The layout of a tile's scales; an entry has values for all 16 rows of the tile.
enum class Scales {
  kRows,        // float32 [tiles, 1, 16]: one per row
  kBlocks,      // float16 [tiles, blocks, 16], or [tiles, blocks, 32] with the minimums after the scales
  kExponents,   // uint8 [tiles, blocks, 16]: the scale is 2^(exponent - 127) / 2
  kSteps,       // uint8 [tiles, superblocks, 320]: float16 d[16], dmin[16]; per block, uint8 scales[16], minimums[16]
  kHalfSteps,   // uint8 [tiles, superblocks, 288]: float16 d[16]; per half block, int8 scales[16]
};

// The values of the sixteen 4-bit codes.
using Values = std::int8_t[16];
constexpr Values kIq4Nl = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr Values kMxfp4 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct PackedFormat {
  const char* name;
  int bits;    // per code
  int middle;  // zero point, subtracted from codes; with `values`, an offset that makes all values nonnegative
  const Values* values;
  Scales scales;
  bool has_min;  // blocks have a minimum, which is added to their values

  // Bits of a code above the lower four. They are stored separately, one group-sized vector per bit.
  constexpr int upper_bits() const { return bits < 8 ? bits - 4 : 0; }
  constexpr int code_bytes() const { return bits * kGroupBytes; }
  // The largest code, or the largest value + middle.
  constexpr int max_code() const {
    if (values == nullptr) return (1 << bits) - 1;
    int max = 0;
    for (int i = 0; i < 16; i++) max = (*values)[i] + middle > max ? (*values)[i] + middle : max;
    return max;
  }
  // Parts of a block that have separate scales.
  constexpr int parts() const { return scales == Scales::kHalfSteps ? 2 : 1; }
  // Blocks per entry of the scales; 0 if one entry applies to all blocks.
  constexpr int blocks_per_entry() const {
    if (scales == Scales::kRows) return 0;
    return scales == Scales::kSteps || scales == Scales::kHalfSteps ? kSuperblock : 1;
  }
  constexpr int scale_type() const {
    return scales == Scales::kRows ? ort::kFloat32 : scales == Scales::kBlocks ? ort::kFloat16 : ort::kUint8;
  }
  // Elements per entry of the scales, of type scale_type().
  constexpr int scale_numbers() const {
    switch (scales) {
      case Scales::kSteps: return kTile * (2 * 2 + kSuperblock * 2);
      case Scales::kHalfSteps: return kTile * (2 + kSuperblock * 2);
      default: return has_min ? 2 * kTile : kTile;
    }
  }
  constexpr int scale_bytes() const {
    return scale_numbers() * (scales == Scales::kRows ? 4 : scales == Scales::kBlocks ? 2 : 1);
  }
};

constexpr PackedFormat kFormats[] = {
    {"int8", 8, 128, nullptr, Scales::kRows, false},
    {"q8_0", 8, 128, nullptr, Scales::kBlocks, false},
    {"q4_0", 4, 8, nullptr, Scales::kBlocks, false},
    {"q4_1", 4, 0, nullptr, Scales::kBlocks, true},
    {"q5_0", 5, 16, nullptr, Scales::kBlocks, false},
    {"q5_1", 5, 0, nullptr, Scales::kBlocks, true},
    {"q4_k", 4, 0, nullptr, Scales::kSteps, true},
    {"q5_k", 5, 0, nullptr, Scales::kSteps, true},
    {"q6_k", 6, 32, nullptr, Scales::kHalfSteps, false},
    {"iq4_nl", 4, 128, &kIq4Nl, Scales::kBlocks, false},
    {"mxfp4", 4, 12, &kMxfp4, Scales::kExponents, false},
};
constexpr int kFormatCount = int(sizeof kFormats / sizeof *kFormats);

constexpr const PackedFormat& record(Format format) { return kFormats[int(format)]; }
// The zero point; 0 for formats with minimums.
constexpr int middle(Format format) { return record(format).middle; }

inline Format format_named(const std::string& name) {
  std::string names;
  for (int i = 0; i < kFormatCount; i++) {
    if (name == kFormats[i].name) return Format(i);
    names += (i > 0 ? ", " : "") + std::string(kFormats[i].name);
  }
  refuse("format is '%s', but must be one of %s", name.c_str(), names.c_str());
}

template <Format kFormat>
struct FormatTag {
  static constexpr Format format = kFormat;
};

template <class Make, int... kEach>
auto with_format(Format format, Make make, std::integer_sequence<int, kEach...>) {
  const decltype(make(FormatTag<Format::kInt8>())) all[] = {make(FormatTag<Format(kEach)>())...};
  return all[int(format)];
}

// Returns make(FormatTag<format>()) for a format known only at run time.
template <class Make>
auto with_format(Format format, Make make) {
  return with_format(format, make, std::make_integer_sequence<int, kFormatCount>());
}

}  // namespace peagle
