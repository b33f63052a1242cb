// Ranks that meet for NCCL over a store, in processes of their own, on the fake of NCCL. Built as a
// shared library that a Python script loads in each process (tests/unit/store_worker.py); the script
// carries the messages, with the package's own threads (jaxccomp/_bootstrap/kv_store.py).
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "common/dynamic_library.h"
#include "fake_nccl.h"
#include "fake_stream.h"
#include "nccl/backend.h"
#include "transport/store/store_transport.h"

namespace {

using namespace jaxccomp;

struct Rank {
  Rank(int process, int processes) : engine(process, processes) {}

  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
  testing::FakeStream stream{1};
  Engine engine;
  std::unique_ptr<nccl::Backend> backend;
  std::vector<std::unique_ptr<nccl::NcclCallSite>> sites;
  Mailbox::StoredMessage message;
  std::string text;
  int64_t run_id = 0;
};

// The one GPU of this process is that of its rank.
int own_gpu = 0;

template <typename T>
T Look(void* library, const char* name) {
  return reinterpret_cast<T>(dlsym(library, name));
}

void* Fake() {
  static void* const fake = dlopen(JAXCCOMP_FAKE_NCCL, RTLD_NOW);
  return fake;
}

const char* Keep(Rank* rank, std::string text) {
  rank->text = std::move(text);
  return rank->text.c_str();
}

}  // namespace

extern "C" {

// A rank, whose NCCL says that it is of `version`. Null when the fake cannot be opened.
Rank* store_open(int process, int processes, int version, double timeout_seconds) {
  if (Fake() == nullptr) return nullptr;
  own_gpu = process;
  static const testing::FakeNcclHooks hooks = {
      [](void* stream, void (*work)(void*), void* argument) {
        static_cast<testing::FakeStream*>(stream)->Push([=] { work(argument); });
      },
      [](const void* address) { return const_cast<void*>(address); }, [](void*) { return own_gpu; }};
  Look<testing::FakeNcclSetHooks>(Fake(), "fake_nccl_set_hooks")(&hooks);
  const auto set = Look<testing::FakeNcclSet>(Fake(), "fake_nccl_set");
  set(static_cast<int>(testing::FakeNcclSetting::kJoinsAlone), 1);
  set(static_cast<int>(testing::FakeNcclSetting::kVersion), version);
  AddLibraryPath(nccl::Library::kName, JAXCCOMP_FAKE_NCCL);
  AddLibraryPath(nccl::Driver::kName, JAXCCOMP_FAKE_NCCL);
  auto* const rank = new Rank(process, processes);
  static_cast<void>(rank->engine.UseRemote(
      [&](Receiver* receiver) -> Result<std::unique_ptr<Transport>> {
        return std::unique_ptr<Transport>(
            std::make_unique<StoreTransport>(process, processes, rank->mailbox, receiver));
      }));
  std::vector<int> members(static_cast<size_t>(processes));
  std::iota(members.begin(), members.end(), 0);
  static_cast<void>(rank->engine.AddCommunicator("world", members));
  static_cast<void>(rank->engine.SetOption("timeout_seconds", std::to_string(timeout_seconds)));
  rank->backend = std::make_unique<nccl::Backend>(&rank->engine, &nccl::Library::Get(),
                                                  &nccl::Driver::Get());
  return rank;
}

// The mailbox, as the engine's Python module has it. The length of the message; -1: there are no more.
int64_t store_take(Rank* rank, int* process) {
  std::optional<Mailbox::StoredMessage> message = rank->mailbox->Take();
  if (!message.has_value()) return -1;
  rank->message = std::move(*message);
  *process = rank->message.process;
  return static_cast<int64_t>(rank->message.text.size());
}
const void* store_message(Rank* rank) { return rank->message.text.data(); }
void store_deliver(Rank* rank, const char* text, int64_t bytes) {
  rank->mailbox->Deliver(std::string(text, static_cast<size_t>(bytes)));
}
void store_fail(Rank* rank, const char* why) { rank->mailbox->Fail({Code::kUnavailable, why}); }
void store_end_parting(Rank* rank) { rank->mailbox->EndParting(); }

// Launches a program of allreduces at those lines, and its ranks meet: "" or the error.
const char* store_meet(Rank* rank, const char* lines) {
  const size_t first = rank->sites.size();
  std::istringstream given(lines);
  for (int line; given >> line;) {
    OpSpec spec;
    spec.collective = Collective::kAllreduce;
    spec.communicator = "world";
    spec.shapes = "float32[3]";
    spec.where = "train.py:" + std::to_string(line);
    spec.site = line;
    Result<std::unique_ptr<nccl::NcclCallSite>> made = nccl::NcclCallSite::Make(spec);
    if (!made.ok()) return Keep(rank, made.status().message());
    rank->sites.push_back(std::move(*made));
  }
  CloseProgram("");
  ++rank->run_id;
  for (size_t i = first; i < rank->sites.size(); ++i) {
    Status status = rank->backend->Join(*rank->sites[i], 0, rank->run_id, &rank->stream);
    if (!status.ok()) return Keep(rank, status.message());
  }
  return "";
}
const char* store_last_id() { return Look<testing::FakeNcclLastId>(Fake(), "fake_nccl_last_id")(); }

void store_shutdown(Rank* rank) {
  rank->backend->Shutdown();
  rank->engine.Shutdown();
}

}  // extern "C"
