#include "engine/flight_recorder.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "engine/awaited.h"
#include "matching/hash.h"

namespace jaxccomp {
namespace {

constexpr size_t kLongestText = 4096;
// By Code, as XLA names the codes.
constexpr std::string_view kCodes[] = {"OK",      "INVALID_ARGUMENT", "FAILED_PRECONDITION", "DEADLINE_EXCEEDED",
                                       "UNAVAILABLE", "ABORTED",      "DATA_LOSS",           "UNIMPLEMENTED",
                                       "INTERNAL"};
static_assert(std::size(kCodes) == static_cast<size_t>(Code::kInternal) + 1);

// Writes JSON. A value is followed by a comma, which the end of its list or object replaces.
class Json {
 public:
  Json& Name(std::string_view name) {
    Quote(name);
    text_ += ':';
    return *this;
  }
  void Text(std::string_view value) {
    Quote(value.substr(0, kLongestText));
    text_ += ',';
  }
  void Number(int64_t value) { text_ += std::to_string(value) + ','; }
  // Readers of JSON may lack 64-bit integers, so numbers that identify something are texts.
  void Identity(uint64_t value) {
    char digits[17];
    std::snprintf(digits, sizeof(digits), "%016" PRIx64, value);
    Text(digits);
  }
  void Null() { text_ += "null,"; }
  void Begin(char open) { text_ += open; }
  void End(char close) {
    if (text_.back() == ',') text_.pop_back();
    text_ += close;
    text_ += ',';
  }
  void Numbers(const std::vector<int>& values) {
    Begin('[');
    for (const int value : values) Number(value);
    End(']');
  }
  std::string Take() {
    text_.pop_back();
    return std::move(text_) + '\n';
  }

 private:
  void Quote(std::string_view value) {
    text_ += '"';
    for (const char c : value) {
      const auto code = static_cast<unsigned char>(c);
      if (code < 0x20) {
        char escaped[7];
        std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(code));
        text_ += escaped;
        continue;
      }
      if (c == '"' || c == '\\') text_ += '\\';
      text_ += c;
    }
    text_ += '"';
  }

  std::string text_;
};

std::vector<int> AwaitedRanks(const Operation& op) {
  std::vector<int> ranks;
  for (const int member : AwaitedMembers(op)) ranks.push_back(op.endpoint->communicator->processes[member]);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace

void FlightRecorder::Describe(const Operation& op, Slot* slot) {
  slot->text = op.text;
  slot->communicator = op.endpoint->communicator;
  slot->key = op.key;
  slot->is_matched_by_key = !op.ends.used && op.endpoint->communicator->remote;
  slot->operand_bytes = 0;
  for (const Tensor& tensor : op.call.inputs) slot->operand_bytes += tensor.bytes;
  slot->sent_bytes = op.caller.cost.sent_bytes;
  slot->begun = op.liveness.begun;
  slot->code = op.status.code();
}

FlightRecorder::Slot& FlightRecorder::NextSlot() {
  slots_.resize(kMaxEnded);
  Slot& slot = slots_[ended_++ % kMaxEnded];
  slot.error.clear();
  slot.awaited.clear();
  return slot;
}

void FlightRecorder::OnFailed(const Operation& op) { awaited_at_failure_[&op] = AwaitedRanks(op); }

void FlightRecorder::OnOver(const Operation& op, Clock::time_point now) {
  Slot& slot = NextSlot();
  Describe(op, &slot);
  slot.ended = now;
  if (!op.failed()) return;
  slot.error = op.status.message();
  if (auto awaited = awaited_at_failure_.extract(&op)) slot.awaited = std::move(awaited.mapped());
}

void FlightRecorder::OnRefused(const std::shared_ptr<const std::string>& text, const Status& why) {
  Slot& slot = NextSlot();
  slot = {};
  slot.text = text;
  slot.begun = slot.ended = Clock::now();
  slot.code = why.code();
  slot.error = why.message();
}

std::string FlightRecorder::ToJson(std::string_view reason) const {
  std::vector<Slot> open;
  operations_.Each([&](const Operation& op) {
    if (op.over()) return;
    Slot& slot = open.emplace_back();
    Describe(op, &slot);
    slot.error = op.status.message();
    const auto awaited = awaited_at_failure_.find(&op);
    slot.awaited = awaited == awaited_at_failure_.end() ? AwaitedRanks(op) : awaited->second;
  });
  std::sort(open.begin(), open.end(), [](const Slot& a, const Slot& b) { return a.begun < b.begun; });
  std::vector<const Slot*> all;
  for (uint64_t i = ended_ - std::min<uint64_t>(ended_, kMaxEnded); i < ended_; ++i) {
    all.push_back(&slots_[i % kMaxEnded]);
  }
  for (const Slot& slot : open) all.push_back(&slot);

  const auto unix_now = std::chrono::system_clock::now().time_since_epoch();
  const auto offset = std::chrono::nanoseconds(unix_now) - std::chrono::nanoseconds(Clock::now().time_since_epoch());
  const auto unix_ns = [&](Clock::time_point time) {
    return static_cast<int64_t>((std::chrono::nanoseconds(time.time_since_epoch()) + offset).count());
  };
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';

  Json json;
  json.Begin('{');
  json.Name("format").Text("jaxccomp.flight");
  json.Name("version").Number(1);
  json.Name("rank").Number(router_.process());
  json.Name("size").Number(registry_.processes());
  json.Name("host").Text(host.data());
  json.Name("pid").Number(getpid());
  json.Name("unix_ns").Number(static_cast<int64_t>(std::chrono::nanoseconds(unix_now).count()));
  json.Name("reason").Text(reason);
  std::unordered_map<const Communicator*, int64_t> indices;
  json.Name("communicators").Begin('[');
  for (const Slot* slot : all) {
    if (slot->communicator == nullptr ||
        !indices.try_emplace(slot->communicator, static_cast<int64_t>(indices.size())).second) {
      continue;
    }
    json.Begin('{');
    json.Name("name").Text(slot->communicator->name);
    json.Name("id").Identity(slot->communicator->id);
    json.Name("ranks").Numbers(slot->communicator->processes);
    json.End('}');
  }
  json.End(']');
  json.Name("operations").Begin('[');
  for (const Slot* slot : all) {
    const bool is_open = slot->ended == Clock::time_point();
    json.Begin('{');
    json.Name("text").Text(*slot->text);
    json.Name("communicator");
    if (slot->communicator == nullptr) json.Null();
    else json.Number(indices.at(slot->communicator));
    const MatchKey& key = slot->key;
    json.Name("thread").Identity(key.thread);
    json.Name("sequence").Number(slot->is_matched_by_key ? static_cast<int64_t>(key.sequence) : 0);
    json.Name("match");
    if (!slot->is_matched_by_key) json.Text("");
    else json.Identity(Mix(Mix(Mix(Mix(key.communicator, key.thread), key.sequence), key.site), key.iteration));
    json.Name("operand_bytes").Number(slot->operand_bytes);
    json.Name("sent_bytes").Number(slot->sent_bytes);
    json.Name("begin_ns").Number(unix_ns(slot->begun));
    json.Name("end_ns");
    if (is_open) json.Null();
    else json.Number(unix_ns(slot->ended));
    json.Name("status").Text(is_open && slot->code == Code::kOk ? "OPEN" : kCodes[static_cast<size_t>(slot->code)]);
    json.Name("error").Text(slot->error);
    json.Name("waits_for").Numbers(slot->awaited);
    json.End('}');
  }
  json.End(']');
  json.End('}');
  return json.Take();
}

}  // namespace jaxccomp
