// The handlers of the platform CUDA, called as XLA calls them, on the fake library's GPUs.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "common/dynamic_library.h"
#include "cuda/library.h"
#include "engine/engine.h"
#include "engine/membership.h"
#include "fake_gpu.h"
#include "fake_xla.h"
#include "handlers/cuda_devices.h"

namespace jaxccomp {
namespace {

using testing::Attributes;
using testing::Buffers;
using testing::FakeGpu;
using testing::FakeStream;
using testing::Outcome;

constexpr int64_t kFirstNumber = 1000;   // the engine's device id of GPU 0
constexpr int kGpus = 2;
constexpr int64_t kCount = 3000;

// Two GPUs of one process, each a rank, with the stream of its program.
struct Gpus {
  Gpus() {
    AddLibraryPath(CudaLibrary::kName, JAXCCOMP_FAKE_CUDA);
    CHECK_OK(OpenCudaDevices({{0, kFirstNumber}, {1, kFirstNumber + 1}}));
    Engine::Get().membership().SetDevices({{kFirstNumber, 0}, {kFirstNumber + 1, 0}});
    for (int ordinal = 0; ordinal < kGpus; ++ordinal) {
      Result<CudaDevice> found = FindCudaDevice(ordinal);
      CHECK_OK(found);
      gpus.push_back(static_cast<FakeGpu*>(found->stage->gpu()));
      streams.push_back(std::make_unique<FakeStream>(static_cast<uint32_t>(ordinal) + 5));
    }
    // From now on the library opens no GPU: handlers must only look up opened ones.
    setenv("JAXCCOMP_FAKE_CUDA_BROKEN", "1", 1);
  }
  std::vector<FakeGpu*> gpus;
  std::vector<std::unique_ptr<FakeStream>> streams;
};

Gpus& Own() {
  static auto* gpus = new Gpus;
  return *gpus;
}

Attributes AttributesOf(const char* collective, const std::string& codec, std::vector<int64_t> group) {
  Attributes given;
  given.Add("collective", collective);
  given.Add("reduce_op", std::strcmp(collective, "allreduce") == 0 ? "sum" : "");
  given.Add("algorithm", "auto");
  given.Add("backend", "auto");
  given.Add("communicator", "");
  given.Add("shapes", "float32[3000]");
  given.Add("where", "step.py:7");
  given.Add("codec", codec);
  given.Add("group_size", static_cast<int64_t>(group.size()));
  given.Add("groups", std::move(group));
  given.Add("root", std::strcmp(collective, "bcast") == 0 ? 0 : -1);
  given.Add("counts", std::vector<int64_t>{});
  given.Add("pairs", std::vector<int64_t>{});
  for (const char* text : {"recv_shapes", "program", "thread"}) given.Add(text, "");
  for (const char* flag : {"tag", "recv_tag", "site", "reverse", "ordered", "has_ref", "feedback", "adds_residual",
                           "status"}) {
    given.Add(flag, 0);
  }
  return given;
}

// A compiled call.
class Program {
 public:
  Program(const char* collective, const std::string& codec,
          std::vector<int64_t> group = {kFirstNumber, kFirstNumber + 1}) {
    XLA_FFI_ExecutionContext context;
    outcome = testing::CallHandler(CudaHandlers().instantiate, XLA_FFI_ExecutionStage_INSTANTIATE,
                                   &context, AttributesOf(collective, codec, std::move(group)), {}, {});
    state_ = context.state;
    CloseProgram("");
  }
  ~Program() {
    if (state_ != nullptr) CudaHandlers().type_info->deleter(state_);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Outcome Run(int ordinal, int64_t run_id, void* operand, void* result) {
    XLA_FFI_ExecutionContext context;
    if (ordinal < kGpus) context.stream = Own().streams[static_cast<size_t>(ordinal)].get();
    context.ordinal = ordinal;
    context.run_id = run_id;
    context.state = state_;
    Buffers operands, results;
    operands.Add(XLA_FFI_DataType_F32, operand, kCount);
    results.Add(XLA_FFI_DataType_F32, result, kCount);
    return testing::CallHandler(CudaHandlers().execute, XLA_FFI_ExecutionStage_EXECUTE, &context,
                                {}, std::move(operands), std::move(results));
  }

  Outcome outcome;

 private:
  void* state_ = nullptr;
};

// Operand and result of a rank in its GPU's memory.
struct Arrays {
  explicit Arrays(int ordinal) : gpu(Own().gpus[static_cast<size_t>(ordinal)]) {
    operand = gpu->memory.Take(kCount * 4);
    result = gpu->memory.Take(kCount * 4);
    auto* const values = reinterpret_cast<float*>(gpu->memory.Shadow(operand));
    for (int64_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 50 + ordinal);
  }
  ~Arrays() {
    gpu->memory.GiveBack(operand);
    gpu->memory.GiveBack(result);
  }
  FakeGpu* const gpu;
  std::byte* operand;
  std::byte* result;
};

// Whether the result is the sum of both ranks' operands, or the first one's operand.
bool Holds(const Arrays& arrays, bool sum) {
  const auto* const values = reinterpret_cast<const float*>(arrays.gpu->memory.Shadow(arrays.result));
  for (int64_t i = 0; i < kCount; ++i) {
    if (values[i] != static_cast<float>(sum ? 2 * (i % 50) + 1 : i % 50)) return false;
  }
  return true;
}

// The handlers of both GPUs run at the same time, on a thread each. When they return, the results are complete.
TEST(cuda_handler_returns_after_the_results_are_complete) {
  Own();
  for (const bool sum : {true, false}) {
    Program program(sum ? "allreduce" : "bcast", sum ? "raw" : "lossless");
    if (!CHECK_EQ(program.outcome.message, "")) return;
    Arrays first(0), second(1);
    for (int64_t run_id = 101; run_id <= 103; ++run_id) {
      std::memset(first.gpu->memory.Shadow(first.result), 0, kCount * 4);
      std::memset(second.gpu->memory.Shadow(second.result), 0, kCount * 4);
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        CHECK_EQ(program.Run(1, run_id, second.operand, second.result).message, "");
        CHECK(Holds(second, sum));
      });
      CHECK_EQ(program.Run(0, run_id, first.operand, first.result).message, "");
      CHECK(Holds(first, sum));
      other.join();
    }
  }
}

TEST(cuda_handler_refuses_unopened_gpus_and_unsupported_codecs) {
  Arrays arrays(0);
  Program program("bcast", "raw");
  const Outcome foreign = program.Run(7, 21, arrays.operand, arrays.result);
  CHECK_EQ(foreign.code, XLA_FFI_Error_Code_FAILED_PRECONDITION);
  CHECK(foreign.message.find("bcast") != std::string::npos);
  CHECK(foreign.message.find("GPU 7 has not been opened") != std::string::npos);
  // An encoded reduction fails when the program is compiled, a codec without kernels when it runs.
  Program reduces("allreduce", "lossless");
  CHECK_EQ(reduces.outcome.code, XLA_FFI_Error_Code_UNIMPLEMENTED);
  Program lacking("bcast", "int8", {kFirstNumber});
  const Outcome refused = lacking.Run(0, 22, arrays.operand, arrays.result);
  CHECK_EQ(refused.code, XLA_FFI_Error_Code_UNIMPLEMENTED);
  CHECK(refused.message.find("fake:0 has no kernels of this codec for float32") != std::string::npos);
  const auto runs = [](const char* codec, DType dtype) {
    const Result<bool> found = CudaRuns(codec, dtype);
    return CHECK_OK(found) && *found;
  };
  CHECK(runs("lossless", DType::kFloat32) && runs("raw", DType::kFloat32));
  CHECK(!runs("int8", DType::kFloat32));
  CHECK(runs("int8", DType::kInt32));   // sent unencoded
  CHECK(!CudaRuns("int9", DType::kFloat32).ok());
}

// A failure on one GPU is raised on both.
TEST(cuda_handler_raises_a_fault_on_all_gpus) {
  Program program("bcast", "lossless");
  Arrays first(0), second(1);
  first.gpu->faults.encode = 1;
  Outcome on_second;
  std::thread other([&] { on_second = program.Run(1, 31, second.operand, second.result); });
  const Outcome on_first = program.Run(0, 31, first.operand, first.result);
  other.join();
  for (const Outcome* outcome : std::initializer_list<const Outcome*>{&on_first, &on_second}) {
    CHECK(outcome->message.find("injected: a kernel failed") != std::string::npos);
  }
  Engine::Get().Shutdown();
}

// Must be the last test: it opens other GPUs.
TEST(cuda_handler_names_the_gpu_that_could_not_be_opened) {
  Own();
  unsetenv("JAXCCOMP_FAKE_CUDA_BROKEN");
  const Status opened = OpenCudaDevices({{1, kFirstNumber}, {9, kFirstNumber + 1}});
  CHECK(opened.message().find("no GPU 9: CUDA finds 2") != std::string::npos);
  CHECK_EQ(FindCudaDevices().size(), 1u);
  CHECK_EQ(FindCudaDevice(9).status().message(), opened.message());
  CHECK(!FindCudaStreamCodecs(9).ok() && FindCudaStreamCodecs(1).ok());
  Arrays arrays(0);
  Program program("bcast", "raw");
  const Outcome outcome = program.Run(9, 41, arrays.operand, arrays.result);
  CHECK(outcome.message.find("no GPU 9: CUDA finds 2") != std::string::npos);
}

}  // namespace
}  // namespace jaxccomp
