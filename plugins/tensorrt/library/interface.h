// The part of TensorRT's plugin interface that the plugins need. It is declared here because no wheel contains the
// header.
//
// The ABI consists of the order of virtual functions and fields, and the class names, which dynamic_cast compares. It
// is unchanged from TensorRT 10.3 on, and the same in TensorRT-RTX 1.7. Functions have their names from NVIDIA's
// documentation. Only IPluginRegistry changed, in TensorRT 11: see `register_creator`.

namespace nvinfer1 {

enum class DataType : std::int32_t { FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8, BF16, INT64, INT4, FP4, E8M0 };
enum class TensorFormat : std::int32_t { LINEAR };
enum class PluginFieldType : std::int32_t { INT32 = 5, INT64 = 10 };
enum class PluginCapabilityType : std::int32_t { CORE, BUILD, RUNTIME };
enum class TensorRTPhase : std::int32_t { BUILD, RUNTIME };
enum class APILanguage : std::int32_t { CPP };
enum class DimensionOperation : std::int32_t { SUM = 0, SUB = 4 };

constexpr int kMaxDims = 8;
struct Dims64 {
  std::int32_t count;
  std::int64_t sizes[kMaxDims];  // -1 if unknown
};
struct PluginTensorDesc {
  Dims64 dims;
  DataType type;
  TensorFormat format;
  float scale;
};
struct DynamicPluginTensorDesc {
  PluginTensorDesc desc;
  Dims64 min, max, opt;
};
struct PluginField {
  const char* name;
  const void* data;
  PluginFieldType type;
  std::int32_t length;
};
struct PluginFieldCollection {
  std::int32_t count;
  const PluginField* fields;
};
struct InterfaceInfo {
  const char* kind;
  std::int32_t major, minor;
};
static_assert(sizeof(Dims64) == 72 && sizeof(PluginTensorDesc) == 88 && sizeof(DynamicPluginTensorDesc) == 304 &&
                  sizeof(PluginField) == 24,
              "layouts on a 64-bit machine");

namespace apiv {
class VRoot {
 public:
  virtual ~VRoot() = default;
};
}  // namespace apiv

class IDimensionExpr;
namespace apiv {
class VDimensionExpr : public VRoot {
 public:
  virtual bool isConstant() const = 0;
  virtual std::int64_t getConstantValue() const = 0;
  virtual bool isSizeTensor() const = 0;
};
class VExprBuilder : public VRoot {
 public:
  virtual const IDimensionExpr* constant(std::int64_t value) = 0;
  virtual const IDimensionExpr* operation(DimensionOperation, const IDimensionExpr&, const IDimensionExpr&) = 0;
};
}  // namespace apiv
class IDimensionExpr {
 public:
  virtual ~IDimensionExpr() = default;
  apiv::VDimensionExpr* impl;
};
class IExprBuilder {
 public:
  virtual ~IExprBuilder() = default;
  apiv::VExprBuilder* impl;
};
struct DimsExprs {
  std::int32_t count;
  const IDimensionExpr* sizes[kMaxDims];
};

class IVersionedInterface {
 public:
  virtual APILanguage getAPILanguage() const noexcept { return APILanguage::CPP; }
  virtual InterfaceInfo getInterfaceInfo() const noexcept = 0;
  virtual ~IVersionedInterface() noexcept = default;
};

class IPluginResourceContext;

namespace v_1_0 {
class IPluginCapability : public IVersionedInterface {};
class IPluginCreatorInterface : public IVersionedInterface {};

class IPluginV3 : public IVersionedInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN", 1, 0}; }
  virtual IPluginCapability* getCapabilityInterface(PluginCapabilityType) noexcept = 0;
  virtual IPluginV3* clone() noexcept = 0;
};

class IPluginV3OneCore : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_CORE", 1, 0}; }
  virtual const char* getPluginName() const noexcept = 0;
  virtual const char* getPluginVersion() const noexcept = 0;
  virtual const char* getPluginNamespace() const noexcept = 0;
};

class IPluginV3OneBuild : public IPluginCapability {  // status codes are 0 on success
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 1, 0}; }
  virtual std::int32_t configurePlugin(const DynamicPluginTensorDesc* inputs, std::int32_t num_inputs,
                                       const DynamicPluginTensorDesc* outputs, std::int32_t num_outputs) noexcept = 0;
  virtual std::int32_t getOutputDataTypes(DataType* outputs, std::int32_t num_outputs, const DataType* inputs,
                                          std::int32_t num_inputs) const noexcept = 0;
  virtual std::int32_t getOutputShapes(const DimsExprs* inputs, std::int32_t num_inputs, const DimsExprs* shape_inputs,
                                       std::int32_t num_shape_inputs, DimsExprs* outputs, std::int32_t num_outputs,
                                       IExprBuilder& builder) noexcept = 0;
  virtual bool supportsFormatCombination(std::int32_t position, const DynamicPluginTensorDesc* in_out,
                                         std::int32_t num_inputs, std::int32_t num_outputs) noexcept = 0;
  virtual std::int32_t getNbOutputs() const noexcept = 0;
  virtual std::size_t getWorkspaceSize(const DynamicPluginTensorDesc*, std::int32_t, const DynamicPluginTensorDesc*,
                                       std::int32_t) const noexcept {
    return 0;
  }
  virtual std::int32_t getValidTactics(std::int32_t*, std::int32_t) noexcept { return 0; }
  virtual std::int32_t getNbTactics() noexcept { return 0; }
  virtual const char* getTimingCacheID() noexcept { return nullptr; }
  virtual std::int32_t getFormatCombinationLimit() noexcept { return 100; }
  virtual const char* getMetadataString() noexcept { return nullptr; }
};

class IPluginV3OneRuntime : public IPluginCapability {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_RUNTIME", 1, 0}; }
  virtual std::int32_t setTactic(std::int32_t) noexcept { return 0; }
  virtual std::int32_t onShapeChange(const PluginTensorDesc* inputs, std::int32_t num_inputs,
                                     const PluginTensorDesc* outputs, std::int32_t num_outputs) noexcept = 0;
  virtual std::int32_t enqueue(const PluginTensorDesc* input_descs, const PluginTensorDesc* output_descs,
                               const void* const* inputs, void* const* outputs, void* workspace,
                               void* stream) noexcept = 0;
  virtual IPluginV3* attachToContext(IPluginResourceContext*) noexcept = 0;
  virtual const PluginFieldCollection* getFieldsToSerialize() noexcept = 0;
};

class IPluginCreatorV3One : public IPluginCreatorInterface {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
  virtual IPluginV3* createPlugin(const char* name, const PluginFieldCollection*, TensorRTPhase) noexcept = 0;
  virtual const PluginFieldCollection* getFieldNames() noexcept = 0;
  virtual const char* getPluginName() const noexcept = 0;
  virtual const char* getPluginVersion() const noexcept = 0;
  virtual const char* getPluginNamespace() const noexcept = 0;
};
}  // namespace v_1_0

namespace v_2_0 {
class IPluginV3OneBuild : public v_1_0::IPluginV3OneBuild {
 public:
  InterfaceInfo getInterfaceInfo() const noexcept override { return {"PLUGIN_V3ONE_BUILD", 2, 0}; }
  virtual std::int32_t getAliasedInput(std::int32_t output) noexcept = 0;  // -1: the output is a separate tensor
};
}  // namespace v_2_0

}  // namespace nvinfer1
