// A mock of TensorRT: reads plugin calls from standard input, one per line, and prints one line per result.
//
// It is compiled together with the library's source. The library's error messages go to standard error.

#include <iostream>
#include <memory>
#include <sstream>

using namespace nvinfer1;

namespace {

std::vector<std::unique_ptr<IDimensionExpr>> expressions;

class Expression : public IDimensionExpr, public apiv::VDimensionExpr {
 public:
  explicit Expression(std::string text) : text_(std::move(text)) { impl = this; }
  bool isConstant() const override { return text_.find_first_not_of("0123456789") == std::string::npos; }
  std::int64_t getConstantValue() const override { return std::stoll(text_); }
  bool isSizeTensor() const override { return false; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

const IDimensionExpr* expression(const std::string& text) {
  expressions.push_back(std::make_unique<Expression>(text));
  return expressions.back().get();
}
const std::string& text_of(const IDimensionExpr* each) { return static_cast<const Expression*>(each)->text(); }

class Builder : public IExprBuilder, public apiv::VExprBuilder {
 public:
  Builder() { impl = this; }
  const IDimensionExpr* constant(std::int64_t value) override { return expression(std::to_string(value)); }
  const IDimensionExpr* operation(DimensionOperation kind, const IDimensionExpr& a, const IDimensionExpr& b) override {
    return expression(text_of(&a) + (kind == DimensionOperation::SUM ? "+" : "-") + text_of(&b));
  }
};

DataType type_of(const std::string& name) {
  for (int i = 0; i < 12; ++i) {
    if (name == peagle::name_of(DataType(i))) return DataType(i);
  }
  return DataType(99);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

PluginTensorDesc described(const std::string& word) {  // "int64:2,-1", or "int64:2,-1:1" for another format
  const std::vector<std::string> parts = split(word, ':');
  PluginTensorDesc desc{{0, {}}, type_of(parts[0]), TensorFormat(parts.size() > 2 ? std::stoi(parts[2]) : 0), 1.f};
  for (const std::string& size : split(parts.size() > 1 ? parts[1] : "", ',')) {
    desc.dims.sizes[desc.dims.count++] = std::stoll(size);
  }
  return desc;
}

struct ParsedField {  // a field, parsed from "name=INT64:1,2"
  std::string name;
  PluginFieldType type;
  std::vector<std::int32_t> narrow;
  std::vector<std::int64_t> wide;
  explicit ParsedField(const std::string& word) : name(word.substr(0, word.find('='))) {
    const std::vector<std::string> parts = split(word.substr(name.size() + 1), ':');
    type = parts[0] == "INT64" ? PluginFieldType::INT64 : PluginFieldType(parts[0] == "INT32" ? 5 : 1);  // else FLOAT32
    for (const std::string& value : split(parts[1], ',')) {
      wide.push_back(std::stoll(value));
      narrow.push_back(std::int32_t(wide.back()));
    }
  }
  PluginField field() const {
    const void* data = narrow.data();
    if (type == PluginFieldType::INT64) data = wide.data();
    return {name.c_str(), data, type, std::int32_t(wide.size())};
  }
};

template <class Interface>
Interface* interface_of(v_1_0::IPluginV3* plugin, PluginCapabilityType type) {
  return dynamic_cast<Interface*>(plugin->getCapabilityInterface(type));
}

}  // namespace

int main() {
  std::unique_ptr<v_1_0::IPluginV3> plugin;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream input(line);
    std::string call, word;
    input >> call;
    std::vector<std::string> words;
    while (input >> word) words.push_back(word);
    using Kind = PluginCapabilityType;
    const auto build = [&] { return interface_of<v_2_0::IPluginV3OneBuild>(plugin.get(), Kind::BUILD); };
    const auto runtime = [&] { return interface_of<v_1_0::IPluginV3OneRuntime>(plugin.get(), Kind::RUNTIME); };
    std::vector<PluginTensorDesc> descs;
    const int outputs = plugin ? build()->getNbOutputs() : 0;
    if (call == "create") {
      std::vector<ParsedField> given(words.begin() + 1, words.end());
      std::vector<PluginField> fields;
      for (const ParsedField& each : given) fields.push_back(each.field());
      const PluginFieldCollection collection{std::int32_t(fields.size()), fields.data()};
      std::int32_t count;
      auto* const* creators = getCreators(count);
      plugin.reset();
      for (int i = 0; i < count; ++i) {
        auto* creator = dynamic_cast<v_1_0::IPluginCreatorV3One*>(creators[i]);
        if (words[0] != creator->getPluginName()) continue;
        plugin.reset(creator->createPlugin("node", &collection, TensorRTPhase::BUILD));
      }
      std::cout << (plugin ? "made" : "refused");
    } else if (call == "describe") {
      auto* core = interface_of<v_1_0::IPluginV3OneCore>(plugin.get(), Kind::CORE);
      std::cout << core->getPluginNamespace() << " " << core->getPluginName() << " " << core->getPluginVersion()
                << " build " << build()->getInterfaceInfo().major << " aliases";
      for (int i = 0; i < outputs; ++i) std::cout << " " << build()->getAliasedInput(i);
      const PluginFieldCollection* fields = runtime()->getFieldsToSerialize();
      for (int i = 0; i < fields->count; ++i) {
        std::cout << " " << fields->fields[i].name << " " << int(fields->fields[i].type) << " "
                  << *static_cast<const std::int64_t*>(fields->fields[i].data);
      }
    } else if (call == "infer") {  // "int64:B,S" for every input
      std::vector<DataType> types, output_types(outputs);
      std::vector<DimsExprs> dims, shapes(outputs);
      for (const std::string& each : words) {
        const std::vector<std::string> parts = split(each, ':');
        types.push_back(type_of(parts[0]));
        dims.push_back({});
        for (const std::string& size : split(parts.size() > 1 ? parts[1] : "", ',')) {
          dims.back().sizes[dims.back().count++] = expression(size);
        }
      }
      Builder builder;
      const int count = int(words.size());
      const bool is_right = !build()->getOutputDataTypes(output_types.data(), outputs, types.data(), count) &&
                            !build()->getOutputShapes(dims.data(), count, nullptr, 0, shapes.data(), outputs, builder);
      if (!is_right) std::cout << "refused";
      for (int i = 0; is_right && i < outputs; ++i) {
        std::cout << (i ? " " : "") << peagle::name_of(output_types[i]) << ":";
        for (int d = 0; d < shapes[i].count; ++d) std::cout << (d ? "," : "") << text_of(shapes[i].sizes[d]);
      }
    } else if (call == "supports") {  // a position, then the descriptions up to it
      std::vector<DynamicPluginTensorDesc> all;
      for (std::size_t i = 2; i < words.size(); ++i) all.push_back({described(words[i]), {}, {}, {}});
      std::cout << build()->supportsFormatCombination(std::stoi(words[0]), all.data(), std::stoi(words[1]), outputs);
    } else if (call == "shapes") {
      for (const std::string& each : words) descs.push_back(described(each));
      const int inputs = int(descs.size()) - outputs;
      const int failed = runtime()->onShapeChange(descs.data(), inputs, descs.data() + inputs, outputs);
      std::cout << (failed ? "refused" : "taken");
    } else if (call == "attach") {
      plugin.reset(runtime()->attachToContext(nullptr));
      std::cout << "attached";
    } else if (call == "clone") {
      plugin.reset(plugin->clone());
      std::cout << "cloned";
    } else if (call == "enqueue") {
      for (const std::string& each : words) descs.push_back(described(each));
      std::vector<const void*> from;
      std::vector<void*> to;
      for (std::size_t i = 0; i < descs.size(); ++i) from.push_back(reinterpret_cast<const void*>(0x100 + i));
      for (int i = 0; i < outputs; ++i) to.push_back(reinterpret_cast<void*>(0x200 + std::intptr_t(i)));
      void* const stream = reinterpret_cast<void*>(0xabc);
      const int failed = runtime()->enqueue(descs.data(), nullptr, from.data(), to.data(), nullptr, stream);
      std::cout << (failed ? "failed" : "launched");
    }
    std::cout << std::endl;
  }
}
