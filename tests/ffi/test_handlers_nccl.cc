// The handlers of NCCL's collectives, called as XLA calls them, on the fake of NCCL.
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "common/dynamic_library.h"
#include "device/cuda_library.h"
#include "engine/engine.h"
#include "fake_xla.h"
#include "handlers/cuda_devices.h"
#include "handlers/platform_handlers.h"
#include "nccl_team.h"

namespace jaxccomp {
namespace {

using testing::Attributes;
using testing::Buffers;
using testing::FakeNccl;
using testing::FakeStream;
using testing::Outcome;

constexpr int64_t kFirstNumber = 2000;
constexpr int kGpus = 2;

Attributes CallOf(const std::string& collective) {
  Attributes given;
  given.Add("collective", collective);
  given.Add("reduce_op", collective == "allreduce" ? "mean" : "");
  for (const char* name : {"algorithm", "backend", "communicator", "shapes", "where", "codec"}) {
    const std::string text = name;
    given.Add(name, text == "algorithm" ? "auto" : text == "codec" ? "raw"
                    : text == "where"   ? "step.py:7" : "");
  }
  given.Add("group_size", kGpus);
  given.Add("groups", std::vector<int64_t>{kFirstNumber, kFirstNumber + 1});
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

TEST(NcclHandlersJoinAndRun) {
  // For the tests of all files here: the library is opened once.
  AddLibraryPath(CudaLibrary::kName, JAXCCOMP_FAKE_CUDA);
  CHECK_OK(OpenCudaDevices({{0, kFirstNumber}, {1, kFirstNumber + 1}}));
  Engine::Get().SetDevices({{kFirstNumber, 0}, {kFirstNumber + 1, 0}});
  const PlatformHandlers& handlers = NcclHandlers();
  XLA_FFI_ExecutionContext compiled;
  FakeNccl& fake = FakeNccl::Get();
  nccl::Backend::Get().ResetCounts();
  const Outcome made = testing::CallHandler(handlers.instantiate,
                                            XLA_FFI_ExecutionStage_INSTANTIATE, &compiled,
                                            CallOf("allreduce"), {}, {});
  if (!CHECK_EQ(made.message, "")) return;
  CloseProgram("");
  std::vector<std::unique_ptr<FakeStream>> streams;
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    streams.push_back(std::make_unique<FakeStream>(static_cast<uint32_t>(gpu) + 1));
    fake.Know(streams.back().get(), gpu, nullptr);
  }
  for (int64_t run_id = 1; run_id <= 3; ++run_id) {
    std::vector<float> in[kGpus], out[kGpus];
    std::vector<std::thread> threads;
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      threads.emplace_back([&, gpu] {
        in[gpu] = {1.0f + static_cast<float>(2 * gpu), 5.0f};
        out[gpu] = {-1, -1};
        XLA_FFI_ExecutionContext context;
        context.stream = streams[gpu].get();
        context.ordinal = gpu;
        context.run_id = run_id;
        context.state = compiled.state;
        for (bool runs : {false, true}) {
          Buffers operands, results;
          operands.Add(XLA_FFI_DataType_F32, in[gpu].data(), 2);
          results.Add(XLA_FFI_DataType_F32, out[gpu].data(), 2);
          const Outcome outcome = testing::CallHandler(
              runs ? handlers.execute : handlers.initialize,
              runs ? XLA_FFI_ExecutionStage_EXECUTE : XLA_FFI_ExecutionStage_INITIALIZE, &context,
              CallOf("allreduce"), std::move(operands), std::move(results));
          CHECK_EQ(outcome.message, "");
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (auto& stream : streams) stream->Finish();
    for (int gpu = 0; gpu < kGpus; ++gpu) CHECK(out[gpu] == std::vector<float>({2.0f, 5.0f}));
  }
  const nccl::Counts counts =
      nccl::Backend::Get().counts()[static_cast<size_t>(Collective::kAllreduce)];
  CHECK_EQ(counts.calls, 3 * kGpus);
  CHECK_EQ(counts.value_bytes, 3 * kGpus * 2 * static_cast<int64_t>(sizeof(float)));
  nccl::Backend::Get().ResetCounts();
  CHECK_EQ(nccl::Backend::Get().counts()[static_cast<size_t>(Collective::kAllreduce)].calls, 0);
  XLA_FFI_ExecutionContext refused;
  CHECK_EQ(testing::CallHandler(handlers.instantiate, XLA_FFI_ExecutionStage_INSTANTIATE, &refused,
                                CallOf("scan"), {}, {}).code,
           XLA_FFI_Error_Code_UNIMPLEMENTED);
  handlers.type_info->deleter(compiled.state);
  nccl::Backend::Get().Shutdown();
}

}  // namespace
}  // namespace jaxccomp
