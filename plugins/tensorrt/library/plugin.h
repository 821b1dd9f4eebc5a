// The plugin and the plugin creator: one class each for all ops, driven by the op's tables (rules.h).

namespace peagle {

using nvinfer1::DimsExprs;
using nvinfer1::DynamicPluginTensorDesc;
using nvinfer1::PluginCapabilityType;
using nvinfer1::PluginField;
using nvinfer1::PluginFieldCollection;
using nvinfer1::PluginFieldType;
using nvinfer1::PluginTensorDesc;

constexpr int kSuccess = 0, kFailure = 1;

// Writes to standard error: the interface of TensorRT's logger differs between versions, and TensorRT's own messages do
// not contain the reason for a plugin's failure.
inline int fail(const std::string& why) {
  std::fprintf(stderr, "[%s] [E] %s\n", kNamespace, why.c_str());
  std::fflush(stderr);
  return kFailure;
}

class BuildCapability : public nvinfer1::v_2_0::IPluginV3OneBuild {  // version 2 if an output aliases an input
 public:
  explicit BuildCapability(const Op& op) : op_(op) {}
  nvinfer1::InterfaceInfo getInterfaceInfo() const noexcept override {
    return {"PLUGIN_V3ONE_BUILD", op_.is_in_place() ? 2 : 1, 0};
  }

 protected:
  const Op& op_;
};

class Plugin final : public nvinfer1::v_1_0::IPluginV3,
                     public nvinfer1::v_1_0::IPluginV3OneCore,
                     public BuildCapability,
                     public nvinfer1::v_1_0::IPluginV3OneRuntime {
 public:
  Plugin(const Op& op, std::vector<std::int64_t> attributes) : BuildCapability(op), attributes_(std::move(attributes)) {
    for (int i = 0; i < op.num_attributes(); ++i) {
      fields_.push_back({op.attributes[i].name, &attributes_[i], PluginFieldType::INT64, 1});
    }
    serialized_ = {std::int32_t(fields_.size()), fields_.data()};
  }

  nvinfer1::v_1_0::IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept override {
    switch (type) {
      case PluginCapabilityType::CORE: return static_cast<nvinfer1::v_1_0::IPluginV3OneCore*>(this);
      case PluginCapabilityType::BUILD: return static_cast<nvinfer1::v_1_0::IPluginV3OneBuild*>(this);
      case PluginCapabilityType::RUNTIME: return static_cast<nvinfer1::v_1_0::IPluginV3OneRuntime*>(this);
    }
    return nullptr;
  }
  nvinfer1::v_1_0::IPluginV3* clone() noexcept override { return copy(); }

  const char* getPluginName() const noexcept override { return op_.name; }
  const char* getPluginVersion() const noexcept override { return kVersion; }
  const char* getPluginNamespace() const noexcept override { return kNamespace; }

  std::int32_t getNbOutputs() const noexcept override { return op_.num_outputs; }
  std::int32_t getAliasedInput(std::int32_t output) noexcept override { return op_.outputs[output].aliases; }
  const PluginFieldCollection* getFieldsToSerialize() noexcept override { return &serialized_; }

  std::int32_t getOutputDataTypes(DataType* outputs, std::int32_t num_outputs, const DataType* inputs,
                                  std::int32_t num_inputs) const noexcept override {
    Problems problems(op_);
    if (check_counts(num_inputs, num_outputs, op_, problems)) {
      const std::vector<DataType> types(inputs, inputs + num_inputs);
      check_types(op_, types, problems);
      for (int i = 0; i < num_outputs; ++i) outputs[i] = output_type(op_, i, types);
    }
    return problems ? fail(problems.text()) : kSuccess;
  }

  std::int32_t getOutputShapes(const DimsExprs* inputs, std::int32_t num_inputs, const DimsExprs*, std::int32_t,
                               DimsExprs* outputs, std::int32_t num_outputs,
                               nvinfer1::IExprBuilder& builder) noexcept override {
    Problems problems(op_);
    if (!check_counts(num_inputs, num_outputs, op_, problems)) return fail(problems.text());
    std::vector<Shape> shapes(num_inputs);
    for (int i = 0; i < num_inputs; ++i) {
      for (int d = 0; d < inputs[i].count; ++d) {
        const nvinfer1::IDimensionExpr* size = inputs[i].sizes[d];
        shapes[i].push_back({size->impl->isConstant() ? size->impl->getConstantValue() : kUnknown, size});
      }
    }
    const std::vector<Size> symbols = sizes_of(op_, shapes, attributes_, problems);
    if (problems) return fail(problems.text());
    for (int i = 0; i < num_outputs; ++i) {
      outputs[i].count = op_.outputs[i].rank;
      for (int d = 0; d < outputs[i].count; ++d) {
        const Size size = evaluate(op_.outputs[i].dims[d], symbols, &builder);
        outputs[i].sizes[d] = size.is_known() ? builder.impl->constant(size.value) : size.expression;
      }
    }
    return kSuccess;
  }

  bool supportsFormatCombination(std::int32_t position, const DynamicPluginTensorDesc* in_out, std::int32_t num_inputs,
                                 std::int32_t) noexcept override {
    // Entries after `position` are not valid yet.
    const PluginTensorDesc& desc = in_out[position].desc;
    if (num_inputs != op_.num_inputs || desc.format != nvinfer1::TensorFormat::LINEAR) return false;
    if (position < num_inputs) {
      const Operand& operand = op_.inputs[position];
      return operand.same_as < 0 ? accepts(operand, desc.type) : desc.type == in_out[operand.same_as].desc.type;
    }
    std::vector<DataType> types;
    for (int i = 0; i < num_inputs; ++i) types.push_back(in_out[i].desc.type);
    Problems problems(op_);
    check_types(op_, types, problems);
    return !problems && desc.type == output_type(op_, position - num_inputs, types);
  }

  std::int32_t configurePlugin(const DynamicPluginTensorDesc* inputs, std::int32_t num_inputs,
                               const DynamicPluginTensorDesc* outputs, std::int32_t num_outputs) noexcept override {
    std::vector<PluginTensorDesc> in, out;
    for (int i = 0; i < num_inputs; ++i) in.push_back(inputs[i].desc);
    for (int i = 0; i < num_outputs; ++i) out.push_back(outputs[i].desc);
    return onShapeChange(in.data(), num_inputs, out.data(), num_outputs);
  }

  std::int32_t onShapeChange(const PluginTensorDesc* inputs, std::int32_t num_inputs, const PluginTensorDesc* outputs,
                             std::int32_t num_outputs) noexcept override {
    Problems problems(op_);
    if (!check_counts(num_inputs, num_outputs, op_, problems)) return fail(problems.text());
    std::vector<DataType> types;
    for (int i = 0; i < num_inputs; ++i) types.push_back(inputs[i].type);
    check_types(op_, types, problems);
    if (problems) return fail(problems.text());
    const std::vector<Size> symbols = sizes_of(op_, shapes_of(inputs), attributes_, problems);
    for (int i = 0; i < num_outputs && !problems; ++i) {
      if (!fits(op_.outputs[i], outputs[i], output_type(op_, i, types), symbols)) {
        problems.add(
            format_text("TensorRT passed %s with a type or shape that differs from the spec", op_.outputs[i].name));
      }
    }
    return problems ? fail(problems.text()) : kSuccess;
  }

  // Returns a clone with its kernel loaded. Builds without a GPU attach plugins but never launch them, so a failure to
  // load is reported only by `enqueue`.
  nvinfer1::v_1_0::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext*) noexcept override {
    Plugin* attached = copy();
    attached->load_error_ = attached->launcher_.load(op_);
    return attached;
  }

  std::int32_t enqueue(const PluginTensorDesc* input_descs, const PluginTensorDesc*, const void* const* inputs,
                       void* const* outputs, void*, void* stream) noexcept override {
    Problems problems(op_);
    const std::vector<Size> symbols = load_error_.empty() ? sizes_of(op_, shapes_of(input_descs), attributes_, problems)
                                                          : std::vector<Size>();
    if (!load_error_.empty()) problems.add("the kernel cannot be used: " + load_error_);
    int entry = 0;
    while (op_.typed_by >= 0 && entry < op_.num_entries && op_.entry_types[entry] != input_descs[op_.typed_by].type) {
      ++entry;
    }
    if (entry == op_.num_entries) problems.add("has no kernel for this type");
    for (int i = 0; i < op_.num_scalars && !problems; ++i) {
      const std::int64_t value = symbols[op_.scalars[i]].value;
      if (value != std::int32_t(value))
        problems.add(format_text("%s is not a 32-bit integer", op_.symbols[op_.scalars[i]]));
    }
    if (problems) return fail(problems.text());
    const std::string problem = launcher_.launch(op_, entry, symbols, inputs, outputs, stream);
    return problem.empty() ? kSuccess : fail(std::string(op_.name) + ": " + problem);
  }

 private:
  Plugin* copy() const {
    Plugin* plugin = new Plugin(op_, attributes_);
    plugin->launcher_ = launcher_;
    plugin->load_error_ = load_error_;
    return plugin;
  }

  std::vector<Shape> shapes_of(const PluginTensorDesc* inputs) const {
    std::vector<Shape> shapes(op_.num_inputs);
    for (int i = 0; i < op_.num_inputs; ++i) {
      for (int d = 0; d < inputs[i].dims.count; ++d) {
        const std::int64_t size = inputs[i].dims.sizes[d];
        shapes[i].push_back({size < 0 ? kUnknown : size});
      }
    }
    return shapes;
  }

  static bool fits(const Operand& operand, const PluginTensorDesc& desc, DataType type,
                   const std::vector<Size>& symbols) {
    bool is_match = desc.type == type && desc.dims.count == operand.rank;
    for (int d = 0; is_match && d < operand.rank; ++d) {
      const Size size = evaluate(operand.dims[d], symbols, nullptr);
      is_match = !size.is_known() || desc.dims.sizes[d] == -1 || desc.dims.sizes[d] == size.value;
    }
    return is_match;
  }

  std::vector<std::int64_t> attributes_;
  std::vector<PluginField> fields_;
  PluginFieldCollection serialized_;
  Launcher launcher_;
  std::string load_error_ = "TensorRT did not attach the plugin to an execution context";
};

inline const char* name_of(PluginFieldType type) {
  constexpr const char* kNames[] = {"FLOAT16", "FLOAT32", "FLOAT64", "INT8", "INT16", "INT32", "CHAR",
                                    "DIMS",    "UNKNOWN", "BF16",    "INT64", "FP8",   "INT4", "FP4"};
  return std::size_t(type) < std::size(kNames) ? kNames[int(type)] : "an unknown type";
}

class Creator final : public nvinfer1::v_1_0::IPluginCreatorV3One {
 public:
  explicit Creator(const Op& op) : op_(op) {
    for (int i = 0; i < op.num_attributes(); ++i) {
      fields_.push_back({op.attributes[i].name, nullptr, PluginFieldType::INT32, 1});
    }
    field_names_ = {std::int32_t(fields_.size()), fields_.data()};
  }
  const PluginFieldCollection* getFieldNames() noexcept override { return &field_names_; }
  const char* getPluginName() const noexcept override { return op_.name; }
  const char* getPluginVersion() const noexcept override { return kVersion; }
  const char* getPluginNamespace() const noexcept override { return kNamespace; }

  // Creates the plugin of an ONNX node or of a plan; both provide the same fields.
  nvinfer1::v_1_0::IPluginV3* createPlugin(const char*, const PluginFieldCollection* collection,
                                           nvinfer1::TensorRTPhase) noexcept override {
    Problems problems(op_);
    std::vector<std::int64_t> values;
    for (int i = 0; i < op_.num_attributes(); ++i) values.push_back(op_.attributes[i].value);
    std::vector<bool> is_set(values.size());
    for (int i = 0; collection != nullptr && i < collection->count; ++i)
      read(collection->fields[i], values, is_set, problems);
    for (std::size_t i = 0; i < values.size(); ++i) check(i, values[i], is_set[i], problems);
    if (!problems) return new Plugin(op_, std::move(values));
    fail(problems.text());
    return nullptr;
  }

 private:
  void read(const PluginField& field, std::vector<std::int64_t>& values, std::vector<bool>& is_set,
            Problems& problems) const {
    for (int i = 0; i < op_.num_attributes(); ++i) {
      if (field.name == nullptr || std::strcmp(field.name, op_.attributes[i].name) != 0) continue;
      is_set[i] = true;  // the ONNX parser passes INT32, a plan INT64
      if (field.type != PluginFieldType::INT32 && field.type != PluginFieldType::INT64) {
        problems.add(format_text("%s must be INT32 or INT64, not %s", field.name, name_of(field.type)));
      } else if (field.length != 1 || field.data == nullptr) {
        problems.add(format_text("%s must be one number, not %d", field.name, field.length));
      } else if (field.type == PluginFieldType::INT32) {
        std::int32_t value;
        std::memcpy(&value, field.data, sizeof value);
        values[i] = value;
      } else {
        std::memcpy(&values[i], field.data, sizeof values[i]);
      }
      return;
    }
    problems.add(format_text("unknown attribute '%s'", field.name ? field.name : ""));
  }

  void check(std::size_t i, std::int64_t value, bool is_set, Problems& problems) const {
    const Attribute& attribute = op_.attributes[i];
    const int* const end = op_.scalars + op_.num_scalars;
    if (problems) return;
    if (!is_set && attribute.required) {
      problems.add(format_text("%s must be given", attribute.name));
    } else if (value < attribute.min) {
      problems.add(format_text("%s %s", attribute.name, attribute.complaint));
    } else if (std::find(op_.scalars, end, op_.num_dimensions + int(i)) != end && value != std::int32_t(value)) {
      problems.add(std::string(attribute.name) + " is " + std::to_string(value) +
                   ", but its kernel takes 32-bit integers");
    }
  }

  const Op& op_;
  std::vector<PluginField> fields_;
  PluginFieldCollection field_names_;
};

}  // namespace peagle
