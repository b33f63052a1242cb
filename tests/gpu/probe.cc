#include "probe.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <thread>

#include "cuda/kernels/compute/compute.h"
#include "device.h"

namespace jaxccomp {
namespace {

using std::chrono::milliseconds;
using testing::Cuda;

constexpr size_t kBytes = 1 << 20;
constexpr int kStreams = 4;
// How long the stream waits: what has not happened by then had to wait for it. And how long that then takes
// at most.
constexpr milliseconds kStands(2000), kLongestAfter(20000);

// Ends the program unless it is gone in time: a call of CUDA may never return.
void Limit(milliseconds longest) {
  std::thread([longest] {
    std::this_thread::sleep_for(longest);
    std::fprintf(stderr, "a call of CUDA has not returned\n");
    std::_Exit(1);
  }).detach();
}

// What all cases have, made before any stream waits.
struct Machine {
  Machine() {
    Cuda(cudaStreamCreateWithFlags(&waiting, cudaStreamNonBlocking), "making a stream");
    for (cudaStream_t& each : others) {
      Cuda(cudaStreamCreateWithFlags(&each, cudaStreamNonBlocking), "making a stream");
    }
    Cuda(cudaMalloc(&device, 2 * kBytes), "cudaMalloc");
    Cuda(cudaHostAlloc(&pinned, kBytes, cudaHostAllocMapped), "cudaHostAlloc");
    Cuda(cudaHostAlloc(reinterpret_cast<void**>(&word), sizeof(*word), cudaHostAllocMapped),
         "cudaHostAlloc");
    *word = 0;
    // Once before, so that nothing here is the first of its kind.
    Launch(waiting);
    CopyAll(waiting);
    Cuda(cudaDeviceSynchronize(), "what comes first");
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    Cuda(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, CUDA_VERSION,
                                          cudaEnableDefault, &result),
         "cuStreamWaitValue32");
    wait = reinterpret_cast<decltype(wait)>(found);
  }
  void Stand() {
    const auto error = wait(waiting, reinterpret_cast<CUdeviceptr>(word), 1, CU_STREAM_WAIT_VALUE_GEQ);
    if (error != CUDA_SUCCESS) {
      std::fprintf(stderr, "cuStreamWaitValue32: %d\n", static_cast<int>(error));
      std::exit(1);
    }
  }
  void GoOn() { std::atomic_ref<uint32_t>(*word).store(1, std::memory_order_release); }
  void Launch(cudaStream_t on) { Cuda(cudaMemsetAsync(device, 0, 64, on), "a launch"); }
  void CopyAll(cudaStream_t on) {
    Cuda(cudaMemcpyAsync(pinned, device, kBytes, cudaMemcpyDeviceToHost, on), "a copy to the host");
    Cuda(cudaMemcpyAsync(device, pinned, kBytes, cudaMemcpyHostToDevice, on), "a copy to the device");
    Cuda(cudaMemcpyAsync(static_cast<char*>(device) + kBytes, device, kBytes, cudaMemcpyDeviceToDevice, on),
         "a copy on the device");
  }

  cudaStream_t waiting = nullptr, others[kStreams] = {};
  void *device = nullptr, *pinned = nullptr;
  uint32_t* word = nullptr;
  decltype(&cuStreamWaitValue32) wait = nullptr;
};

void LaunchMany(Machine& m, int count) {
  for (int i = 0; i < count; ++i) m.Launch(m.waiting);
}

void Instantiate(Machine& m) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  Cuda(cudaStreamBeginCapture(m.others[0], cudaStreamCaptureModeThreadLocal), "capturing");
  m.Launch(m.others[0]);
  m.CopyAll(m.others[0]);
  Cuda(cudaStreamEndCapture(m.others[0], &graph), "capturing");
  Cuda(cudaGraphInstantiate(&made, graph, 0), "instantiating a graph");
}

struct Case {
  const char* name;
  void (*run)(Machine& machine);
};

// Those first that show whether a stream may wait at all.
constexpr Case kCases[] = {
    {"kernels on other streams",
     [](Machine& m) {
       for (cudaStream_t each : m.others) m.Launch(each);
       for (cudaStream_t each : m.others) Cuda(cudaStreamSynchronize(each), "kernels");
     }},
    {"copies on other streams",
     [](Machine& m) {
       for (cudaStream_t each : m.others) m.CopyAll(each);
       for (cudaStream_t each : m.others) Cuda(cudaStreamSynchronize(each), "copies");
     }},
    {"kernels on 18 more streams",
     [](Machine& m) {
       for (int i = 0; i < 18; ++i) {
         cudaStream_t more = nullptr;
         Cuda(cudaStreamCreateWithFlags(&more, cudaStreamNonBlocking), "making a stream");
         m.Launch(more);
         Cuda(cudaStreamSynchronize(more), "a kernel");
       }
     }},
    {"500 launches behind", [](Machine& m) { LaunchMany(m, 500); }},
    {"1100 launches behind", [](Machine& m) { LaunchMany(m, 1100); }},
    {"20000 launches behind", [](Machine& m) { LaunchMany(m, 20000); }},
    {"1100 launches behind, then one on another stream",
     [](Machine& m) {
       std::thread([&m] { LaunchMany(m, 1100); }).detach();
       std::this_thread::sleep_for(milliseconds(300));
       m.Launch(m.others[0]);
       Cuda(cudaStreamSynchronize(m.others[0]), "a kernel");
     }},
    {"a host function on another stream",
     [](Machine& m) {
       Cuda(cudaLaunchHostFunc(m.others[0], [](void*) {}, nullptr), "a host function");
       Cuda(cudaStreamSynchronize(m.others[0]), "a host function");
     }},
    {"an event",
     [](Machine&) {
       cudaEvent_t event = nullptr;
       Cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
     }},
    {"memory of a pool",
     [](Machine& m) {
       void* memory = nullptr;
       Cuda(cudaMallocAsync(&memory, 64 << 20, m.others[0]), "cudaMallocAsync");
       Cuda(cudaStreamSynchronize(m.others[0]), "cudaMallocAsync");
     }},
    {"memory of the device",
     [](Machine&) {
       void* memory = nullptr;
       Cuda(cudaMalloc(&memory, 64 << 20), "cudaMalloc");
     }},
    {"pinned memory",
     [](Machine&) {
       void* memory = nullptr;
       Cuda(cudaHostAlloc(&memory, 64 << 20, cudaHostAllocMapped), "cudaHostAlloc");
     }},
    {"the first launch of a kernel",
     [](Machine& m) {
       const Device::FillRun run{static_cast<std::byte*>(m.device), 16, 4, {std::byte{1}}};
       if (!cuda::Fill(run, m.others[0]).ok()) std::exit(1);
       Cuda(cudaStreamSynchronize(m.others[0]), "a kernel");
     }},
    {"instantiating a graph", Instantiate},
    {"freeing memory of the device",
     [](Machine& m) { Cuda(cudaFree(m.device), "cudaFree"); }},
};

}  // namespace

void ListProbes() {
  for (const Case& each : kCases) std::printf("%s\n", each.name);
}

void Probe(std::string_view name) {
  const Case* chosen = nullptr;
  for (const Case& each : kCases) {
    if (name == each.name) chosen = &each;
  }
  if (chosen == nullptr) std::_Exit(2);
  Limit(kStands + kLongestAfter);
  static Machine machine;
  machine.Stand();
  const auto begun = std::chrono::steady_clock::now();
  std::mutex mutex;
  std::condition_variable wake;
  bool over = false;
  std::thread([&] {
    chosen->run(machine);
    std::lock_guard lock(mutex);
    over = true;
    wake.notify_all();
  }).detach();
  std::unique_lock lock(mutex);
  const bool waited = !wake.wait_for(lock, kStands, [&] { return over; });
  machine.GoOn();
  wake.wait(lock, [&] { return over; });   // Limit ends it
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
  Cuda(cudaDeviceSynchronize(), "what was behind");
  const char* const connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  std::printf("{\"probe\": \"%s\", \"connections\": \"%s\", \"waited_for_the_stream\": %s, "
              "\"seconds\": %.6f}\n",
              chosen->name, connections == nullptr ? "default" : connections, waited ? "true" : "false",
              seconds.count());
  std::fflush(stdout);
  std::_Exit(0);
}

}  // namespace jaxccomp
