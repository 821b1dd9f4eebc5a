// What the spec of an op says, as tables that sources.py writes, and the checks of a call against them.
//
// TensorRT validates almost nothing: a wrong rank ends the process, a wrong type is taken in silence.

namespace peagle {

using nvinfer1::DataType;
using nvinfer1::DimensionOperation;

[[gnu::format(printf, 1, 2)]] inline std::string text_of(const char* format, ...) {
  char text[1024];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

struct Term {
  int sign;
  int symbol;  // which of the op's symbols
};
struct Sum {  // a dim expression: terms are added and taken away from left to right, the constant last
  const Term* terms;
  int count;
  std::int64_t constant;
};
struct Operand {
  const char* name;
  const DataType* types;  // that are allowed
  int num_types;
  int same_as;      // the input whose type it has, -1 for none
  int aliases;      // of an output, the input whose buffer it is, -1 for none
  const Sum* dims;  // of an input, a symbol each
  int rank;
};
struct Attribute {  // whole numbers only: kernels take no others
  const char* name;
  bool required;
  std::int64_t value;  // where it is left out
  std::int64_t least;
  const char* complaint;  // of less than the least
};
struct Bound {  // least <= the product of sizes, so many times <= most
  const Term* factors;
  int count;
  std::int64_t times;
  std::int64_t least;
  std::int64_t most;
  int least_symbol;       // whose size is the least, -1 for none
  int most_symbol;        // whose size is the most, -1 for none
  const char* complaint;  // with the names of symbols, and `product`, in braces
};
struct Cubin {
  int sm;  // 90 is compute capability 9.0
  const unsigned char* begin;
  const unsigned char* end;
};
struct Op {
  const char* name;
  const char* const* symbols;  // dimensions, then attributes
  int num_dimensions;
  int num_symbols;
  const Operand* inputs;
  int num_inputs;
  const Operand* outputs;
  int num_outputs;
  const Attribute* attributes;
  const Bound* bounds;
  int num_bounds;
  const char* const* entries;
  const DataType* entry_types;
  int num_entries;
  int typed_by;  // the input whose type says which entry, -1 where there is one
  const int* scalars;
  int num_scalars;
  Sum blocks;
  int per;  // the symbol that multiplies the blocks, -1 where there is none
  int threads;
  int cluster;
  const Cubin* cubins;
  int num_cubins;

  int num_attributes() const { return num_symbols - num_dimensions; }
  bool is_in_place() const {
    return std::any_of(outputs, outputs + num_outputs, [](const Operand& each) { return each.aliases >= 0; });
  }
};

const char* name_of(DataType type);  // as ONNX has it

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::min();
struct Size {  // of a dimension: a number, or an expression where TensorRT has one, or unknown
  std::int64_t value = kUnknown;
  const nvinfer1::IDimensionExpr* expression = nullptr;
  bool is_known() const { return value != kUnknown; }
};
using Shape = std::vector<Size>;

class Problems {  // what is wrong with a call, all of it
 public:
  explicit Problems(const Op& op) : op_(op) {}
  void add(const std::string& problem) { text_ += (text_.empty() ? "" : "; ") + problem; }
  explicit operator bool() const { return !text_.empty(); }
  std::string text() const { return std::string(op_.name) + ": " + text_; }

 private:
  const Op& op_;
  std::string text_;
};

inline bool counts_agree(int inputs, int outputs, const Op& op, Problems& problems) {
  if (inputs == op.num_inputs && outputs == op.num_outputs) return true;
  problems.add(text_of("has %d inputs and %d outputs, not %d and %d", op.num_inputs, op.num_outputs, inputs, outputs));
  return false;
}

inline bool takes(const Operand& operand, DataType type) {
  return std::find(operand.types, operand.types + operand.num_types, type) != operand.types + operand.num_types;
}

inline void check_types(const Op& op, const std::vector<DataType>& types, Problems& problems) {
  for (int i = 0; i < op.num_inputs; ++i) {
    const Operand& operand = op.inputs[i];
    if (operand.same_as >= 0 ? types[i] == types[operand.same_as] : takes(operand, types[i])) continue;
    std::string allowed = operand.same_as >= 0 ? name_of(types[operand.same_as]) : "";
    for (int i = 0; operand.same_as < 0 && i < operand.num_types; ++i) {
      allowed += (i ? " or " : "") + std::string(name_of(operand.types[i]));
    }
    problems.add(text_of("%s must be %s, not %s", operand.name, allowed.c_str(), name_of(types[i])));
  }
}

inline DataType output_type(const Op& op, int output, const std::vector<DataType>& inputs) {
  const Operand& operand = op.outputs[output];
  return operand.same_as >= 0 ? inputs[operand.same_as] : operand.types[0];
}

inline std::string filled(const char* complaint, const Op& op, const std::vector<Size>& sizes, std::int64_t product) {
  std::string text;
  for (const char* at = complaint; *at; ++at) {
    const char* end = *at == '{' ? std::strchr(at, '}') : nullptr;
    if (end == nullptr) {
      text += *at;
      continue;
    }
    const std::string name(at + 1, end);
    std::int64_t value = product;
    for (int i = 0; i < op.num_dimensions; ++i) {
      if (name == op.symbols[i]) value = sizes[i].value;
    }
    text += std::to_string(value);
    at = end;
  }
  return text;
}

inline bool breaks(const Bound& bound, const std::vector<Size>& sizes, std::int64_t& product) {
  product = bound.times;
  for (int i = 0; i < bound.count; ++i) {
    const Size& size = sizes[bound.factors[i].symbol];
    if (!size.is_known()) return false;
    if (__builtin_mul_overflow(product, size.value, &product)) product = std::numeric_limits<std::int64_t>::max();
  }
  const Size least = bound.least_symbol >= 0 ? sizes[bound.least_symbol] : Size{bound.least};
  const Size most = bound.most_symbol >= 0 ? sizes[bound.most_symbol] : Size{bound.most};
  return (least.is_known() && product < least.value) || (most.is_known() && product > most.value);
}

// The size of every symbol of the op: its dimensions' from the shapes of its inputs, its attributes' values.
inline std::vector<Size> sizes_of(const Op& op, const std::vector<Shape>& shapes,
                              const std::vector<std::int64_t>& attributes, Problems& problems) {
  std::vector<Size> sizes(op.num_symbols);
  std::vector<bool> is_bound(op.num_symbols);
  for (int i = 0; i < op.num_inputs; ++i) {
    const Operand& operand = op.inputs[i];
    if (int(shapes[i].size()) != operand.rank) {
      problems.add(text_of("%s must have rank %d, not %zu", operand.name, operand.rank, shapes[i].size()));
      continue;
    }
    for (int d = 0; d < operand.rank; ++d) {
      const int symbol = operand.dims[d].terms[0].symbol;
      const Size& size = shapes[i][d];
      if (!is_bound[symbol] || (size.is_known() && !sizes[symbol].is_known())) {
        sizes[symbol] = size;  // a known size says more than one that is not
        is_bound[symbol] = true;
      } else if (size.is_known() && size.value != sizes[symbol].value) {
        problems.add(text_of("%s: dimension %s is %lld, but %lld in another tensor", operand.name, op.symbols[symbol],
                             static_cast<long long>(size.value), static_cast<long long>(sizes[symbol].value)));
      }
    }
  }
  for (int i = 0; i < op.num_bounds && !problems; ++i) {
    std::int64_t product;
    if (breaks(op.bounds[i], sizes, product)) problems.add(filled(op.bounds[i].complaint, op, sizes, product));
  }
  for (int i = 0; i < op.num_attributes(); ++i) sizes[op.num_dimensions + i].value = attributes[i];
  return sizes;
}

// The size that a sum comes to: known, or an expression where there is a builder, or unknown.
inline Size evaluate(const Sum& sum, const std::vector<Size>& symbols, nvinfer1::IExprBuilder* builder) {
  Size total{0};
  const auto add = [&](int sign, const Size& term) {
    if (term.is_known() && term.value == 0) return;
    if (total.is_known() && term.is_known()) {
      total.value += sign * term.value;
    } else if (builder != nullptr) {
      const auto lifted = [&](const Size& size) {
        return size.is_known() ? builder->answers->constant(size.value) : size.expression;
      };
      const auto made = [&](DimensionOperation operation, const Size& first, const Size& second) {
        return Size{kUnknown, builder->answers->operation(operation, *lifted(first), *lifted(second))};
      };
      if (sign < 0) {
        total = made(DimensionOperation::SUB, total, term);
      } else if (total.is_known()) {  // what is known comes last, as in the plugins of Python
        total = total.value == 0 ? term : made(DimensionOperation::SUM, term, total);
      } else {
        total = made(DimensionOperation::SUM, total, term);
      }
    } else {
      total = Size{};
    }
  };
  for (int i = 0; i < sum.count; ++i) add(sum.terms[i].sign, symbols[sum.terms[i].symbol]);
  if (sum.constant != 0) add(sum.constant > 0 ? 1 : -1, Size{sum.constant > 0 ? sum.constant : -sum.constant});
  return total;
}

}  // namespace peagle
