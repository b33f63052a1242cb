#include "shared.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "codec/part.h"
#include "device/cuda_interface.h"
#include "gpu_rig.h"

extern char** environ;

namespace jaxccomp {
namespace {

using namespace testing;

constexpr int64_t kBytes = 8 << 20, kAlignment = 256;
constexpr const char* kSpecs[] = {nullptr, "lossless", "int8:block=256", "bf16"};
constexpr int64_t kCounts[] = {777, 70001};
constexpr int64_t kFirst = 11;   // as Encoded has it

// What is exported: where in the shared memory, and how many bytes.
struct Exported {
  int64_t offset;
  int64_t bytes;
};

// The same cases in the same order in both processes.
template <typename F>
void ForEachCase(F f) {
  for (const char* spec : kSpecs) {
    ForEach({Find(spec)}, [&](const Codec* codec, DType dtype) {
      for (int64_t count : kCounts) f(codec, dtype, count, Numbers(dtype, count, 1));
    });
  }
}

Bytes DecodedByHost(const Codec* codec, DType dtype, int64_t count, const Bytes& code) {
  if (codec == nullptr) return code;
  Workspace workspace;
  Bytes values(static_cast<size_t>(count * SizeBytes(dtype)));
  CHECK_OK(codec->Decode(dtype, code, values.data(), count, CodingContext(workspace)));
  return values;
}

Device* FirstDevice() {
  std::string reason;
  Device* const device = jaxccomp_cuda_device(0, &reason);
  if (device == nullptr) std::fprintf(stderr, "%s\n", reason.c_str());
  return device;
}

// Reads and writes whole, or ends the program: the other process is gone then.
template <typename F>
void Whole(F transfer, char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t done = transfer(data, bytes);
    if (done <= 0) {
      std::fprintf(stderr, "the process on the other end of the pipe is gone\n");
      std::_Exit(1);
    }
    data += done;
    bytes -= static_cast<size_t>(done);
  }
}

void Tell(int pipe, const void* data, size_t bytes) {
  Whole([&](char* at, size_t n) { return write(pipe, at, n); },
        static_cast<char*>(const_cast<void*>(data)), bytes);
}

void Hear(void* data, size_t bytes) {
  Whole([](char* at, size_t n) { return read(STDIN_FILENO, at, n); }, static_cast<char*>(data),
        bytes);
}

pid_t Start(int* to_it) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[0], STDIN_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  constexpr const char* kThis = "/proc/self/exe";
  char* const arguments[] = {const_cast<char*>(kThis), const_cast<char*>("import"), nullptr};
  pid_t child = -1;
  if (posix_spawn(&child, kThis, &actions, nullptr, arguments, environ) != 0) child = -1;
  posix_spawn_file_actions_destroy(&actions);
  close(ends[0]);
  *to_it = ends[1];
  return child;
}

// Encodes all cases into the memory, and tells where they are.
void Export(Device& device, std::byte* memory, int pipe) {
  GpuRig rig(device);
  int64_t offset = 0;
  ForEachCase([&](const Codec* codec, DType dtype, int64_t count, const Bytes& values) {
    const int64_t most = codec == nullptr ? std::ssize(values) : codec->MaxEncodedBytes(dtype, count);
    auto* const bytes = reinterpret_cast<int64_t*>(rig.Pinned(sizeof(int64_t)).data());
    if (!CHECK(offset + most <= kBytes)) return;
    CHECK_OK(rig.Encode({codec, dtype, rig.Values(values), count,
                         std::span(memory + offset, static_cast<size_t>(most)), bytes, nullptr,
                         nullptr, kDeviceKey, kFirst}));
    const Exported exported = {offset, *bytes};
    Tell(pipe, &exported, sizeof(exported));
    offset += (most + kAlignment - 1) / kAlignment * kAlignment;
  });
}

}  // namespace

bool CompareShared() {
  Device* const device = FirstDevice();
  if (device == nullptr) return false;
  const int64_t before = FailedChecks();
  std::byte* const memory = device->AllocateShared(kBytes);
  if (!CHECK(memory != nullptr)) return false;
  const Result<std::string> handle = device->Export(memory);
  if (!CHECK_OK(handle)) return false;
  const Result<Device::Imported> own = device->Import(*handle);
  CHECK(own.ok() && own->memory == memory);
  int pipe = -1;
  std::signal(SIGPIPE, SIG_IGN);   // that it is gone is said where it is written to
  const pid_t child = Start(&pipe);
  if (!CHECK(child > 0)) return false;
  const auto size = static_cast<int64_t>(handle->size());
  Tell(pipe, &size, sizeof(size));
  Tell(pipe, handle->data(), handle->size());
  Export(*device, memory, pipe);
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  close(pipe);
  const int64_t differ = FailedChecks() - before;
  std::printf("{\"shared memory of\": \"%s\", \"processes\": 2, \"failed\": %lld}\n",
              std::string(device->name()).c_str(), static_cast<long long>(differ));
  return differ == 0;
}

int Import() {
  Device* const device = FirstDevice();
  if (device == nullptr) return 1;
  int64_t size = 0;
  Hear(&size, sizeof(size));
  std::string handle(static_cast<size_t>(size), '\0');
  Hear(handle.data(), handle.size());
  std::string broken = handle;
  broken.back() ^= 1;
  CHECK_EQ(device->Import(broken).status().code(), Code::kDataLoss);
  const Result<Device::Imported> exported = device->Import(handle);
  if (!CHECK_OK(exported)) return 1;
  GpuRig rig(*device);
  ForEachCase([&](const Codec* codec, DType dtype, int64_t count, const Bytes& values) {
    Exported at;
    Hear(&at, sizeof(at));
    if (!CHECK(at.offset + at.bytes <= exported->bytes)) return;
    const std::span code(exported->memory + at.offset, static_cast<size_t>(at.bytes));
    const Bytes expected = Encoded(codec, dtype, values, count);
    if (rig.Take(code.data(), code.size()) != expected) {
      CHECK_EQ("other bytes", Words(codec, dtype, count));
    }
    std::byte* const to = rig.Values(Bytes(values.size()));
    CHECK_OK(rig.Decode({codec, dtype, code, to, count, nullptr, 0}));
    if (rig.Take(to, values.size()) != DecodedByHost(codec, dtype, count, expected)) {
      CHECK_EQ("other values", Words(codec, dtype, count));
    }
  });
  return FailedChecks() == 0 ? 0 : 1;
}

}  // namespace jaxccomp
