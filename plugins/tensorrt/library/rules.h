// The structs of the op tables that sources.py generates from the specs, and checks of plugin calls against the tables.
//
// TensorRT validates almost nothing: a wrong rank crashes the process, and a wrong type is accepted silently.

namespace peagle {

using nvinfer1::DataType;
using nvinfer1::DimensionOperation;

[[gnu::format(printf, 1, 2)]] inline std::string format_text(const char* format, ...) {
  char text[1024];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

struct Term {
  int sign;
  int symbol;  // index in the op's symbols
};
struct Sum {  // a dimension expression: terms are added or subtracted from left to right, the constant last
  const Term* terms;
  int count;
  std::int64_t constant;
};
struct Operand {
  const char* name;
  const DataType* types;  // allowed types
  int num_types;
  int same_as;      // the input with the same type, or -1
  int aliases;      // outputs: the input that is updated in place, or -1
  const Sum* dims;  // inputs: one symbol per dimension
  int rank;
};
struct Attribute {  // integers only, because kernels take no other attributes
  const char* name;
  bool required;
  std::int64_t value;  // default
  std::int64_t min;
  const char* complaint;  // message for values below min
};
struct Bound {  // min <= factor * product of sizes <= max
  const Term* factors;
  int count;
  std::int64_t factor;
  std::int64_t min;
  std::int64_t max;
  int min_symbol;         // its size replaces min; -1 for none
  int max_symbol;         // its size replaces max; -1 for none
  const char* complaint;  // may contain names of symbols, and `product`, in braces
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
  int typed_by;  // the input whose type selects the entry; -1 if there is one entry
  const int* scalars;
  int num_scalars;
  Sum blocks;
  int per;  // the symbol whose size multiplies `blocks`, or -1
  int threads;
  int cluster;
  const Cubin* cubins;
  int num_cubins;

  int num_attributes() const { return num_symbols - num_dimensions; }
  bool is_in_place() const {
    return std::any_of(outputs, outputs + num_outputs, [](const Operand& each) { return each.aliases >= 0; });
  }
};

const char* name_of(DataType type);  // ONNX's name

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::min();
struct Size {  // of a dimension: a known number, a TensorRT expression, or unknown
  std::int64_t value = kUnknown;
  const nvinfer1::IDimensionExpr* expression = nullptr;
  bool is_known() const { return value != kUnknown; }
};
using Shape = std::vector<Size>;

class Problems {  // collects the errors of one call
 public:
  explicit Problems(const Op& op) : op_(op) {}
  void add(const std::string& problem) { text_ += (text_.empty() ? "" : "; ") + problem; }
  explicit operator bool() const { return !text_.empty(); }
  std::string text() const { return std::string(op_.name) + ": " + text_; }

 private:
  const Op& op_;
  std::string text_;
};

inline bool check_counts(int inputs, int outputs, const Op& op, Problems& problems) {
  if (inputs == op.num_inputs && outputs == op.num_outputs) return true;
  problems.add(
      format_text("has %d inputs and %d outputs, not %d and %d", op.num_inputs, op.num_outputs, inputs, outputs));
  return false;
}

inline bool accepts(const Operand& operand, DataType type) {
  return std::find(operand.types, operand.types + operand.num_types, type) != operand.types + operand.num_types;
}

inline void check_types(const Op& op, const std::vector<DataType>& types, Problems& problems) {
  for (int i = 0; i < op.num_inputs; ++i) {
    const Operand& operand = op.inputs[i];
    if (operand.same_as >= 0 ? types[i] == types[operand.same_as] : accepts(operand, types[i])) continue;
    std::string allowed = operand.same_as >= 0 ? name_of(types[operand.same_as]) : "";
    for (int i = 0; operand.same_as < 0 && i < operand.num_types; ++i) {
      allowed += (i ? " or " : "") + std::string(name_of(operand.types[i]));
    }
    problems.add(format_text("%s must be %s, not %s", operand.name, allowed.c_str(), name_of(types[i])));
  }
}

inline DataType output_type(const Op& op, int output, const std::vector<DataType>& inputs) {
  const Operand& operand = op.outputs[output];
  return operand.same_as >= 0 ? inputs[operand.same_as] : operand.types[0];
}

inline std::string format_complaint(const char* complaint, const Op& op, const std::vector<Size>& sizes,
                                    std::int64_t product) {
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

inline bool violates(const Bound& bound, const std::vector<Size>& sizes, std::int64_t& product) {
  product = bound.factor;
  for (int i = 0; i < bound.count; ++i) {
    const Size& size = sizes[bound.factors[i].symbol];
    if (!size.is_known()) return false;
    if (__builtin_mul_overflow(product, size.value, &product)) product = std::numeric_limits<std::int64_t>::max();
  }
  const Size min = bound.min_symbol >= 0 ? sizes[bound.min_symbol] : Size{bound.min};
  const Size max = bound.max_symbol >= 0 ? sizes[bound.max_symbol] : Size{bound.max};
  return (min.is_known() && product < min.value) || (max.is_known() && product > max.value);
}

// Returns the sizes of the op's symbols: dimensions, bound from the input shapes, then attribute values.
inline std::vector<Size> sizes_of(const Op& op, const std::vector<Shape>& shapes,
                                  const std::vector<std::int64_t>& attributes, Problems& problems) {
  std::vector<Size> sizes(op.num_symbols);
  std::vector<bool> is_bound(op.num_symbols);
  for (int i = 0; i < op.num_inputs; ++i) {
    const Operand& operand = op.inputs[i];
    if (int(shapes[i].size()) != operand.rank) {
      problems.add(format_text("%s must have rank %d, not %zu", operand.name, operand.rank, shapes[i].size()));
      continue;
    }
    for (int d = 0; d < operand.rank; ++d) {
      const int symbol = operand.dims[d].terms[0].symbol;
      const Size& size = shapes[i][d];
      if (!is_bound[symbol] || (size.is_known() && !sizes[symbol].is_known())) {
        sizes[symbol] = size;  // prefer a known size
        is_bound[symbol] = true;
      } else if (size.is_known() && size.value != sizes[symbol].value) {
        problems.add(format_text("%s: dimension %s is %lld, but %lld in another tensor", operand.name,
                                 op.symbols[symbol], static_cast<long long>(size.value),
                                 static_cast<long long>(sizes[symbol].value)));
      }
    }
  }
  for (int i = 0; i < op.num_bounds && !problems; ++i) {
    std::int64_t product;
    if (violates(op.bounds[i], sizes, product))
      problems.add(format_complaint(op.bounds[i].complaint, op, sizes, product));
  }
  for (int i = 0; i < op.num_attributes(); ++i) sizes[op.num_dimensions + i].value = attributes[i];
  return sizes;
}

// Evaluates a sum. The result is known if all terms are, otherwise an expression if there is a builder, or unknown.
inline Size evaluate(const Sum& sum, const std::vector<Size>& symbols, nvinfer1::IExprBuilder* builder) {
  Size total{0};
  const auto add = [&](int sign, const Size& term) {
    if (term.is_known() && term.value == 0) return;
    if (total.is_known() && term.is_known()) {
      total.value += sign * term.value;
    } else if (builder != nullptr) {
      const auto to_expression = [&](const Size& size) {
        return size.is_known() ? builder->impl->constant(size.value) : size.expression;
      };
      const auto combine = [&](DimensionOperation operation, const Size& first, const Size& second) {
        return Size{kUnknown, builder->impl->operation(operation, *to_expression(first), *to_expression(second))};
      };
      if (sign < 0) {
        total = combine(DimensionOperation::SUB, total, term);
      } else if (total.is_known()) {  // known terms last, as in the Python plugins
        total = total.value == 0 ? term : combine(DimensionOperation::SUM, term, total);
      } else {
        total = combine(DimensionOperation::SUM, total, term);
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
