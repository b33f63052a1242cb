// The handlers of NCCL's collectives on XLA's communicators, called as XLA calls them: NCCL is the fake
// (fake_nccl.cc), and so is the library that asks XLA (fake_xla_library.cc).
#include <dlfcn.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/engine.h"
#include "fake_xla.h"
#include "handlers/cuda_devices.h"
#include "handlers/platform_handlers.h"
#include "handlers/xla_library.h"
#include "nccl_team.h"

namespace jaxccomp {
namespace {

using testing::Attributes;
using testing::Buffers;
using testing::FakeNccl;
using testing::FakeStream;
using testing::Outcome;

constexpr int64_t kFirstNumber = 3000;
constexpr int kGpus = 2;

Attributes CallOf(bool placed = true) {
  Attributes given;
  given.Add("collective", "allreduce");
  given.Add("reduce_op", "sum");
  given.Add("algorithm", "auto");
  given.Add("codec", "raw");
  given.Add("where", "step.py:7");
  for (const char* name : {"communicator", "shapes"}) given.Add(name, "");
  given.Add("group_size", kGpus);
  given.Add("groups", std::vector<int64_t>{kFirstNumber, kFirstNumber + 1});
  if (placed) given.Add("coordinates", std::vector<int64_t>{1, 0});
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

// XLA's communicators between the GPUs, made by nobody here.
std::vector<nccl::CommHandle> MakeXlas(int ranks) {
  const nccl::Library& nccl = nccl::Library::Get();
  nccl::UniqueId id;
  nccl.get_unique_id(&id);
  std::vector<nccl::CommHandle> made(static_cast<size_t>(ranks));
  nccl::Config config;
  config.blocking = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    nccl.comm_init_rank_config(&made[rank], ranks, id, rank, &config);
  }
  for (nccl::CommHandle each : made) {
    int state = 0;
    nccl.comm_get_async_error(each, &state);
    CHECK_EQ(state, int{nccl::kSuccess});
  }
  return made;
}

struct Rig {
  Rig() {
    AddLibraryPath(XlaLibrary::kName, JAXCCOMP_FAKE_XLA);
    FakeNccl::Get();
    SetCudaDevices({{0, kFirstNumber}, {1, kFirstNumber + 1}});
    Engine::Get().SetDevices({{kFirstNumber, 0}, {kFirstNumber + 1, 0}});
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      streams.push_back(std::make_unique<FakeStream>(static_cast<uint32_t>(gpu) + 1));
      FakeNccl::Get().Know(streams.back().get(), gpu, nullptr);
    }
    const Outcome made =
        testing::CallHandler(handlers.instantiate, XLA_FFI_ExecutionStage_INSTANTIATE, &compiled,
                             CallOf(), {}, {});
    CHECK_EQ(made.message, "");
    CloseProgram("");
  }
  ~Rig() {
    for (auto& stream : streams) {
      stream->Finish();
      FakeNccl::Get().Forget(stream.get());
    }
    handlers.type_info->deleter(compiled.state);
  }

  // One launch on both GPUs, each with its communicator: what the stages say, of the first that fails.
  std::vector<Outcome> Launch(const std::vector<nccl::CommHandle>& comms, int64_t run_id,
                              const std::string& refusal = "", bool without_ordinal = false) {
    std::vector<Outcome> outcomes(kGpus);
    std::vector<std::thread> threads;
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      threads.emplace_back([&, gpu] {
        XLA_FFI_ExecutionContext context;
        context.stream = streams[gpu].get();
        context.ordinal = gpu;
        context.run_id = run_id;
        context.state = compiled.state;
        context.communicator = comms[gpu];
        context.refusal = refusal;
        in[gpu] = {1.0f + static_cast<float>(2 * gpu), 5.0f};
        out[gpu] = {-1, -1};
        const struct {
          XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*);
          XLA_FFI_ExecutionStage stage;
        } stages[] = {{handlers.prepare, XLA_FFI_ExecutionStage_PREPARE},
                      {handlers.initialize, XLA_FFI_ExecutionStage_INITIALIZE},
                      {handlers.execute, XLA_FFI_ExecutionStage_EXECUTE}};
        for (const auto& stage : stages) {
          const bool prepares = stage.stage == XLA_FFI_ExecutionStage_PREPARE;
          context.ordinal = without_ordinal && prepares ? -1 : gpu;
          Buffers operands, results;
          operands.Add(XLA_FFI_DataType_F32, in[gpu].data(), 2);
          results.Add(XLA_FFI_DataType_F32, out[gpu].data(), 2);
          outcomes[gpu] = testing::CallHandler(stage.handler, stage.stage, &context, CallOf(),
                                               std::move(operands), std::move(results));
          if (!outcomes[gpu].message.empty()) return;
          if (prepares) CHECK_EQ(context.requests, 1);
          CHECK(stage.stage == XLA_FFI_ExecutionStage_INITIALIZE ||
                context.asked_places == std::vector<int64_t>({1, 0, kGpus}));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return outcomes;
  }
  void CheckSums() {
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      streams[gpu]->Finish();
      CHECK(out[gpu] == std::vector<float>({4.0f, 10.0f}));
    }
  }

  const PlatformHandlers& handlers = NcclXlaHandlers();
  XLA_FFI_ExecutionContext compiled;
  std::vector<std::unique_ptr<FakeStream>> streams;
  std::vector<float> in[kGpus], out[kGpus];
};

TEST(NcclXlaHandlersUseXlasCommunicators) {
  Rig rig;
  const int made_before = FakeNccl::Get().Made();
  const std::vector<nccl::CommHandle> first = MakeXlas(kGpus), second = MakeXlas(kGpus);
  // XLA may have another one for a later launch.
  for (int64_t run_id = 1; run_id <= 6; ++run_id) {
    const auto outcomes = rig.Launch(run_id < 4 ? first : second, run_id, "", run_id % 2 == 0);
    for (const Outcome& outcome : outcomes) CHECK_EQ(outcome.message, "");
    rig.CheckSums();
  }
  // None but XLA's were made.
  CHECK_EQ(FakeNccl::Get().Made() - made_before, 2 * kGpus);
}

TEST(NcclXlaHandlersPassErrorsOn) {
  Rig rig;
  for (const Outcome& outcome : rig.Launch(MakeXlas(kGpus), 11, "XLA has none")) {
    CHECK_EQ(outcome.message, "XLA has none");
    CHECK_EQ(outcome.code, XLA_FFI_Error_Code_UNIMPLEMENTED);
  }
  // All is well again when XLA says so.
  for (const Outcome& outcome : rig.Launch(MakeXlas(kGpus), 12)) CHECK_EQ(outcome.message, "");
  rig.CheckSums();
  XLA_FFI_ExecutionContext refused;
  CHECK(testing::CallHandler(rig.handlers.instantiate, XLA_FFI_ExecutionStage_INSTANTIATE, &refused,
                             CallOf(false), {}, {})
            .message.find("where its groups lie") != std::string::npos);
}

}  // namespace
}  // namespace jaxccomp
