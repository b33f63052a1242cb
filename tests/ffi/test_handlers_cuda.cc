// The handlers of the platform CUDA, called as XLA calls them, on the fake library's devices.
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
#include "device/cuda_library.h"
#include "engine/engine.h"
#include "fake_device.h"
#include "fake_xla.h"
#include "handlers/cuda_devices.h"
#include "handlers/device_errors.h"

namespace jaxccomp {
namespace {

using testing::Attributes;
using testing::Buffers;
using testing::FakeDevice;
using testing::FakeStream;
using testing::Outcome;

constexpr int64_t kFirstNumber = 1000;   // the engine's number of GPU 0
constexpr int kGpus = 2;
constexpr int64_t kCount = 3000;

// Two GPUs of one process, each a rank, with the stream that a program runs on.
struct Gpus {
  Gpus() {
    AddLibraryPath(CudaLibrary::kName, JAXCCOMP_FAKE_CUDA);
    CHECK_OK(OpenCudaDevices({{0, kFirstNumber}, {1, kFirstNumber + 1}}));
    Engine::Get().SetDevices({{kFirstNumber, 0}, {kFirstNumber + 1, 0}});
    for (int ordinal = 0; ordinal < kGpus; ++ordinal) {
      Result<CudaDevice> found = FindCudaDevice(ordinal);
      CHECK_OK(found);
      devices.push_back(static_cast<FakeDevice*>(found->memory));
      streams.push_back(std::make_unique<FakeStream>(static_cast<uint32_t>(ordinal) + 5));
    }
    // From now on the library opens none: handlers only look up what has been opened.
    setenv("JAXCCOMP_FAKE_CUDA_BROKEN", "1", 1);
  }
  std::vector<FakeDevice*> devices;
  std::vector<std::unique_ptr<FakeStream>> streams;
};

Gpus& Own() {
  static auto* gpus = new Gpus;
  return *gpus;
}

Attributes AllreduceAttributes(const std::string& codec, std::vector<int64_t> group) {
  Attributes given;
  given.Add("collective", "allreduce");
  given.Add("reduce_op", "sum");
  given.Add("algorithm", "auto");
  given.Add("backend", "auto");
  given.Add("communicator", "");
  given.Add("shapes", "float32[3000]");
  given.Add("where", "step.py:7");
  given.Add("codec", codec);
  given.Add("group_size", static_cast<int64_t>(group.size()));
  given.Add("groups", std::move(group));
  given.Add("root", -1);
  given.Add("counts", std::vector<int64_t>{});
  given.Add("pairs", std::vector<int64_t>{});
  for (const char* text : {"recv_shapes", "program", "thread"}) given.Add(text, "");
  for (const char* flag : {"tag", "recv_tag", "site", "reverse", "ordered", "referenced", "feedback", "carries",
                           "status"}) {
    given.Add(flag, 0);
  }
  return given;
}

// A compiled call, as XLA keeps it.
class Program {
 public:
  explicit Program(const std::string& codec,
                   std::vector<int64_t> group = {kFirstNumber, kFirstNumber + 1}) {
    XLA_FFI_ExecutionContext context;
    outcome = testing::CallHandler(CudaHandlers().instantiate, XLA_FFI_ExecutionStage_INSTANTIATE,
                                   &context, AllreduceAttributes(codec, std::move(group)), {}, {});
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
  explicit Arrays(int ordinal) : device(Own().devices[static_cast<size_t>(ordinal)]) {
    operand = device->memory.Take(kCount * 4);
    result = device->memory.Take(kCount * 4);
    auto* const values = reinterpret_cast<float*>(device->memory.Shadow(operand));
    for (int64_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 50 + ordinal);
  }
  ~Arrays() {
    device->memory.GiveBack(operand);
    device->memory.GiveBack(result);
  }
  FakeDevice* const device;
  std::byte* operand;
  std::byte* result;
};

bool IsSum(const Arrays& arrays) {
  const auto* const values = reinterpret_cast<const float*>(arrays.device->memory.Shadow(arrays.result));
  for (int64_t i = 0; i < kCount; ++i) {
    if (values[i] != static_cast<float>(2 * (i % 50) + 1)) return false;
  }
  return true;
}

void FinishStreams() {
  for (auto& stream : Own().streams) stream->Finish();
}

// By default the host waits: the handlers of both GPUs are called at the same time, on a thread each, and
// when they return the results are there.
TEST(CudaHandlerReturnsWhenItIsOver) {
  Gpus& own = Own();
  for (const char* codec : {"raw", "lossless"}) {
    Program program(codec);
    if (!CHECK_EQ(program.outcome.message, "")) return;
    Arrays first(0), second(1);
    for (int64_t run_id = 101; run_id <= 103; ++run_id) {
      std::memset(first.device->memory.Shadow(first.result), 0, kCount * 4);
      std::memset(second.device->memory.Shadow(second.result), 0, kCount * 4);
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        CHECK_EQ(program.Run(1, run_id, second.operand, second.result).message, "");
        CHECK(IsSum(second));
      });
      CHECK_EQ(program.Run(0, run_id, first.operand, first.result).message, "");
      CHECK(IsSum(first));
      other.join();
    }
  }
  CHECK_EQ(FindDeviceError().status.message(), "");
  for (FakeDevice* device : own.devices) CHECK_EQ(device->held_streams(), 0);
}

// From here on the stream waits, until a test says otherwise.
TEST(CudaHandlerRunsACollectiveInStreamOrder) {
  Own();
  CHECK_OK(Engine::Get().SetOption("device_wait", "stream"));
  for (const char* codec : {"raw", "lossless"}) {
    Program program(codec);
    if (!CHECK_EQ(program.outcome.message, "")) return;
    Arrays first(0), second(1);
    int64_t seen = 0;
    for (int64_t run_id = 1; run_id <= 3; ++run_id) {
      std::memset(first.device->memory.Shadow(first.result), 0, kCount * 4);
      std::memset(second.device->memory.Shadow(second.result), 0, kCount * 4);
      CHECK_EQ(program.Run(0, run_id, first.operand, first.result).message, "");
      CHECK_EQ(program.Run(1, run_id, second.operand, second.result).message, "");
      // What the program queues behind the call sees its results.
      Own().streams[0]->Push([&] { seen += IsSum(first); });
      FinishStreams();
      CHECK(IsSum(second));
    }
    CHECK_EQ(seen, 3);
  }
  CHECK_EQ(FindDeviceError().status.message(), "");
}

TEST(CudaHandlerReturnsBeforeItsPeersHaveCome) {
  Program program("raw");
  Arrays first(0), second(1);
  // The stream is still busy, and no other rank is there: the host goes on all the same.
  Own().streams[0]->Push([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
  const auto begun = std::chrono::steady_clock::now();
  for (int64_t run_id = 11; run_id <= 13; ++run_id) {
    CHECK_EQ(program.Run(0, run_id, first.operand, first.result).message, "");
  }
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(40));
  for (int64_t run_id = 11; run_id <= 13; ++run_id) {
    CHECK_EQ(program.Run(1, run_id, second.operand, second.result).message, "");
  }
  FinishStreams();
  CHECK(IsSum(first) && IsSum(second));
}

// What fails here breaks the communicator of both GPUs for those that come after: also for a call that
// waits.
TEST(CudaHandlersNextCallTellsWhatFailedAfterTheLast) {
  Program program("raw");
  Arrays first(0), second(1);
  first.device->faults.computation = 1;
  CHECK_EQ(program.Run(0, 31, first.operand, first.result).message, "");
  CHECK_EQ(program.Run(1, 31, second.operand, second.result).message, "");
  FinishStreams();   // both go on
  const DeviceError error = FindDeviceError();
  CHECK(error.status.message().find("injected: a kernel failed") != std::string::npos);
  const Outcome next = program.Run(1, 32, second.operand, second.result);
  CHECK(next.code != XLA_FFI_Error_Code_OK);
  CHECK(next.message.find("injected: a kernel failed") != std::string::npos);
  CHECK(FindDeviceError().returned);
  CHECK_OK(Engine::Get().SetOption("device_wait", "host"));
  const Outcome waits = program.Run(0, 33, first.operand, first.result);
  CHECK(waits.message.find("injected: a kernel failed") != std::string::npos);
}

TEST(CudaHandlerRefusesWhatItCannotRun) {
  Arrays arrays(0);
  Program program("raw");
  const Outcome foreign = program.Run(7, 21, arrays.operand, arrays.result);
  CHECK_EQ(foreign.code, XLA_FFI_Error_Code_FAILED_PRECONDITION);
  CHECK(foreign.message.find("allreduce") != std::string::npos);
  CHECK(foreign.message.find("GPU 7 has not been opened") != std::string::npos);
  Program lacking("ternary", {kFirstNumber});   // which the fake device does not have
  const Outcome refused = lacking.Run(0, 22, arrays.operand, arrays.result);
  CHECK_EQ(refused.code, XLA_FFI_Error_Code_UNIMPLEMENTED);
  CHECK(refused.message.find("'ternary' of float32 does not run on fake:0") != std::string::npos);
  const auto runs = [](const char* codec, DType dtype) {
    const Result<bool> found = CudaRuns(codec, dtype);
    return CHECK_OK(found) && *found;
  };
  CHECK(runs("int8", DType::kFloat32) && runs("raw", DType::kFloat32));
  CHECK(!runs("ternary", DType::kFloat32) && !runs("int8", DType::kFloat64));
  CHECK(runs("ternary", DType::kInt32));   // which travel as they are
  CHECK(!CudaRuns("int9", DType::kFloat32).ok());
  Engine::Get().Shutdown();
}

// The last test: it opens others.
TEST(CudaHandlerTellsWhichGpuCouldNotBeOpened) {
  Own();
  unsetenv("JAXCCOMP_FAKE_CUDA_BROKEN");
  const Status opened = OpenCudaDevices({{1, kFirstNumber}, {9, kFirstNumber + 1}});
  CHECK(opened.message().find("no GPU 9: CUDA finds 2") != std::string::npos);
  CHECK_EQ(FindCudaDevices().size(), 1u);
  CHECK_EQ(FindCudaDevice(9).status().message(), opened.message());
  CHECK_EQ(*FindCudaNumber(9), kFirstNumber + 1);   // which NCCL needs
  CHECK(!FindCudaStreamCodecs(9).ok() && FindCudaStreamCodecs(1).ok());
  Arrays arrays(0);
  Program program("raw");
  const Outcome outcome = program.Run(9, 41, arrays.operand, arrays.result);
  CHECK(outcome.message.find("no GPU 9: CUDA finds 2") != std::string::npos);
}

}  // namespace
}  // namespace jaxccomp
