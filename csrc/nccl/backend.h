// Collectives by NCCL: who takes part meets through the engine, once, and afterwards operations go
// straight to the caller's stream. docs/nccl.md says in which order, and why that cannot deadlock.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "engine/engine.h"
#include "matching/call_log.h"
#include "nccl/driver.h"
#include "nccl/library.h"
#include "nccl/operation.h"
#include "nccl/team.h"

namespace jaxccomp::nccl {

// A call site whose values NCCL moves.
class NcclCallSite {
 public:
  static Result<std::unique_ptr<NcclCallSite>> Make(OpSpec spec);
  const OpSpec& spec() const { return spec_; }
  const CallSite& site() const { return *site_; }   // where its ranks meet

 private:
  friend class Backend;
  OpSpec spec_;
  std::unique_ptr<CallSite> site_;
  std::mutex mutex_;
  std::map<int64_t, Team*> joined_;   // by device
  std::shared_ptr<CallRow> row_;      // from its first run on; under the backend's lock
};

// What has been queued, by collective; when it ran only the GPU knows.
struct Counts {
  int64_t calls = 0;
  int64_t value_bytes = 0;   // of the operands
};
using AllCounts = std::array<Counts, kCollectiveCount>;

// The NCCL of one engine. Thread-safe.
class Backend {
 public:
  // `library` and `driver` outlive it, and so does the engine.
  Backend(Engine* engine, const Library* library, const Driver* driver);
  ~Backend() { Shutdown(); }
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  // The process's own engine's.
  static Backend& Get();
  // Null as long as there is none.
  static Backend* Find();

  // Whether ranks that share a GPU are made acceptable to NCCL, by all backends of the process.
  static void SetSharesGpus(bool shares);

  // Before anything of a launch is queued on `stream`, which says on what GPU it is. The first launch
  // of a program waits here for its other ranks, which compare programs, and make the NCCL
  // communicator if there is none: all of them, or none. Later launches return at once.
  Status Join(NcclCallSite& site, int64_t device, int64_t run_id, void* stream);
  // Queues the operation on call.stream; never waits for it. Who has not joined yet does so here.
  Status Run(NcclCallSite& site, const Call& call);
  void Forget(NcclCallSite& site);
  AllCounts counts();
  // The same by call site: seconds and bytes on the wire are 0.
  CallLog::Snapshot GetCallLog();
  void ResetCounts();
  // Operations that are queued end first, unless something has failed.
  void Shutdown();

 private:
  using Clock = std::chrono::steady_clock;

  Result<Team*> TeamOf(NcclCallSite& site, const Engine::Place& place, void* context);
  Status Meet(NcclCallSite& site, const Engine::Place& place, Team& team, int64_t device,
              int64_t run_id);
  Status Create(NcclCallSite& site, Team& team, const std::vector<Row>& rows,
                const std::function<Result<std::vector<Row>>(Row)>& exchange);
  Clock::time_point Deadline() const;
  // Makes the team unusable on all its ranks.
  void Fail(Team& team, const Status& why);
  Lane& LaneOf(void* context);
  void Watch();
  // Looks after what is under way; true when there is any.
  bool PollOperations();

  Engine* const engine_;
  const Library& library_;
  const Driver& driver_;

  std::mutex mutex_;   // of what follows
  bool stopped_ = false;
  std::map<std::tuple<uint64_t, int, int>, std::unique_ptr<Team>> teams_;
  std::map<void*, std::unique_ptr<Lane>> lanes_;   // by context
  uint64_t submitted_ = 0;                         // operations, ever
  AllCounts counts_;
  CallLog calls_;
  std::thread watch_;
  std::condition_variable wake_;
};

}  // namespace jaxccomp::nccl
