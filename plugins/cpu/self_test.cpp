// An operator that calls every function of the interface that a kernel may call, and tells what came of it.

namespace peagle {

struct SelfTestAttributes {
  std::string text, absent_text;
  std::int64_t whole, absent_whole;
  float number, absent_number;

  explicit SelfTestAttributes(const Node& node)
      : text(node.text("text", "")),
        absent_text(node.text("absent", "default")),
        whole(node.whole("whole", 0)),
        absent_whole(node.whole("absent", -5)),
        number(node.number("number", 0)),
        absent_number(node.number("absent", -0.5f)) {}
};

// x f32 [2, n], a constant int32 [3] -> y f32 [2, 4]: the facts that self_test.py compares.  A negative first x fails.
class SelfTest {
 public:
  SelfTest(const SelfTestAttributes& attributes, const Node& node) : attributes_(attributes) {
    const Tensor constant = node.constant(1, "c");
    if (constant.type != ort::kInt32 || constant.shape.rank != 1 || constant.shape.count() != 3) {
      refuse("a constant int32 [3] came as type %d of rank %d", constant.type, constant.shape.rank);
    }
    last_ = constant.data<const std::int32_t>()[2];
    ort::Status* status = ort::call(ort::kCreateStatus, 1, "probe");
    const bool same = ort::call(ort::kGetErrorCode, status) == 1 &&
                      std::strcmp(ort::call(ort::kGetErrorMessage, status), "probe") == 0;
    ort::call(ort::kReleaseStatus, status);
    if (!same) refuse("an error came back as another");
    if (attributes.text != "word" || attributes.absent_text != "default" || attributes.absent_whole != -5 ||
        attributes.absent_number != -0.5f) {
      refuse("attributes came as %s, %s, %lld, %g", attributes.text.c_str(), attributes.absent_text.c_str(),
             static_cast<long long>(attributes.absent_whole), double(attributes.absent_number));
    }
  }

  void run(Call& call) const {
    const Tensor x = call.input(0);
    const float* numbers = x.data<const float>();
    if (numbers[0] < 0) refuse("asked to fail");
    constexpr std::size_t kPieces = 97;
    std::atomic<int> visits[kPieces] = {};
    call.parallel(kPieces, [&](std::size_t i) { visits[i]++; });
    int once = 0;
    for (const std::atomic<int>& each : visits) once += each == 1;
    Shape shape;
    float* y = call.output(0, shape.with(2).with(4)).data<float>();
    const float facts[8] = {float(attributes_.whole),   attributes_.number,      float(last_), float(call.inputs()),
                            float(call.outputs()),      float(once),             float(x.shape.rank),
                            numbers[x.shape.count() - 1]};
    std::memcpy(y, facts, sizeof facts);
  }

 private:
  SelfTestAttributes attributes_;
  std::int32_t last_ = 0;
};

}  // namespace peagle
