#include "nccl/meeting.h"

#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "matching/hash.h"

namespace jaxccomp::nccl {
namespace {

int32_t OwnHost() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return static_cast<int32_t>(Mix(0, std::string_view(name)));
}

// Starts an operation on bytes of the host's memory; End waits for it.
class Pending {
 public:
  Pending(Engine& engine, CallSite& site, int64_t device, int64_t run_id, const void* in,
          int64_t in_bytes, void* out, int64_t out_rows, int64_t out_bytes)
      : shared_(std::make_shared<Shared>()) {
    Call call;
    call.device = device;
    call.run_id = run_id;
    call.inputs = {{const_cast<void*>(in), DType::kUInt8, 1, in_bytes}};
    call.outputs = {{out, DType::kUInt8, out_rows, out_bytes}};
    auto shared = shared_;
    std::optional<Status> now = engine.Start(
        site, std::move(call),
        [&] { return [shared](Status status) { shared->Set(std::move(status)); }; });
    if (now.has_value()) shared_->Set(std::move(*now));
  }
  Status End() {
    std::unique_lock lock(shared_->mutex);
    shared_->wake.wait(lock, [&] { return shared_->status.has_value(); });
    return *shared_->status;
  }

 private:
  struct Shared {
    std::mutex mutex;
    std::condition_variable wake;
    std::optional<Status> status;
    void Set(Status s) {
      std::lock_guard lock(mutex);
      status = std::move(s);
      wake.notify_all();
    }
  };
  std::shared_ptr<Shared> shared_;
};

Result<std::unique_ptr<CallSite>> MessageSite(const std::string& communicator, Collective collective,
                                          int peer) {
  OpSpec spec;
  spec.collective = collective;
  spec.communicator = communicator;
  spec.pairs = {peer};
  spec.tag = OpSpec::kMeetingTag;
  spec.ordered = true;
  spec.shapes = "the meeting of two ranks for NCCL";
  return MakeCallSite(std::move(spec));
}

}  // namespace

void Row::Blame(const Status& status) {
  version = 0;
  std::strncpy(why.data(), status.message().c_str(), why.size() - 1);
}

Result<std::vector<Row>> Exchange(Engine& engine, CallSite& site, const Engine::Place& place,
                                  int64_t device, int64_t run_id, Row row) {
  row.host = OwnHost();
  std::vector<Row> rows(place.members.size());
  Pending gathered(engine, site, device, run_id, &row, sizeof(Row), rows.data(),
                   static_cast<int64_t>(rows.size()),
                   static_cast<int64_t>(rows.size() * sizeof(Row)));
  Status status = gathered.End();
  if (!status.ok()) return status;
  return rows;
}

Result<std::vector<Row>> ExchangeWith(Engine& engine, const std::string& communicator, int member,
                                      int peer, int64_t device, Row row) {
  row.host = OwnHost();
  auto send = MessageSite(communicator, Collective::kSend, peer);
  if (!send.ok()) return send.status();
  auto recv = MessageSite(communicator, Collective::kRecv, peer);
  if (!recv.ok()) return recv.status();
  Row sent = row, theirs;
  Pending going(engine, **send, device, 0, &row, sizeof(Row), &sent, 1, sizeof(Row));
  Pending coming(engine, **recv, device, 0, &theirs, sizeof(Row), &theirs, 1, sizeof(Row));
  // Both, since both touch what lies here.
  const Status gone = going.End(), come = coming.End();
  engine.Forget(**send);
  engine.Forget(**recv);
  if (!gone.ok()) return gone;
  if (!come.ok()) return come;
  if (member < peer) return std::vector<Row>{row, theirs};
  return std::vector<Row>{theirs, row};
}

Status Judge(const std::vector<Row>& rows, const std::vector<std::string>& names) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].version != 0) continue;
    return {Code::kUnavailable,
            "backend=\"nccl\" needs NCCL on all ranks, and " + names[i] + " cannot use it: " +
                std::string(rows[i].why.data(), strnlen(rows[i].why.data(), rows[i].why.size()))};
  }
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i].version == rows[0].version) continue;
    return {Code::kFailedPrecondition,
            "backend=\"nccl\" needs the same NCCL on all ranks, but " + names[0] + " has " +
                VersionText(rows[0].version) + " and " + names[i] + " has " +
                VersionText(rows[i].version)};
  }
  return Status::Ok();
}

int MostOnOneGpu(const std::vector<Row>& rows) {
  int most = 1;
  for (const Row& row : rows) {
    const auto same = std::count_if(rows.begin(), rows.end(), [&](const Row& other) {
      return other.host == row.host && other.gpu == row.gpu;
    });
    most = std::max(most, static_cast<int>(same));
  }
  return most;
}

void LetRanksShareGpus(int version, int rank) {
  constexpr int kKeep = 0;   // what the program has set
  if (version >= Library::kSharesGpusFrom) {
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", kKeep);
  } else {
    // Ranks of different hosts, for all that NCCL knows, which talk through sockets.
    setenv("NCCL_HOSTID", ("jaxccomp-" + std::to_string(rank)).c_str(), kKeep);
  }
}

}  // namespace jaxccomp::nccl
