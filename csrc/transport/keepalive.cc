#include "transport/keepalive.h"

#include <algorithm>
#include <string>

namespace jaxccomp {

void Keepalive::Poll() {
  if (!on()) return;
  const auto now = Clock::now();
  const auto away = now - polled_;
  if (away < interval()) return;
  polled_ = now;
  std::vector<int> living;
  for (int process = 0; process < channel_.processes(); ++process) {
    if (process == process_ || !channel_.HasFailed(process)) living.push_back(process);
  }
  const size_t count = living.size();
  const auto own =
      static_cast<size_t>(std::find(living.begin(), living.end(), process_) - living.begin());
  std::vector<int> watched;
  for (size_t distance = 1; distance < count; distance *= 2) {
    watched.push_back(living[(own + count - distance) % count]);
  }
  // Restart the timeout of newly watched processes, and of all processes after a pause in which this one did not poll.
  for (int process : watched) {
    const bool is_new = std::find(watched_.begin(), watched_.end(), process) == watched_.end();
    if (is_new || away > timeout_ / 2) peers_[static_cast<size_t>(process)].watched_since = now;
  }
  watched_ = watched;
  for (int process : watched) {
    GiveUpIfSilent(process, now);
    if (!channel_.HasFailed(process)) channel_.SendControl(process, MessageType::kAlive, kQuestion, 0);
  }
}

void Keepalive::GiveUpIfSilent(int process, Clock::time_point now) {
  const Peer& peer = peers_[static_cast<size_t>(process)];
  const auto maximum = peer.has_spoken ? timeout_ : std::max<Clock::duration>(timeout_, kFirstWord);
  const auto silent = now - std::max(peer.heard, peer.watched_since);
  if (silent <= maximum) return;
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(silent).count();
  channel_.MarkFailed(process, {Code::kDeadlineExceeded,
                          "rank " + std::to_string(process) + " of the world has not been heard by rank " +
                              std::to_string(process_) + " for " + std::to_string(milliseconds) +
                              " ms (the option peer_timeout_seconds): it has stopped, or the network "
                              "between them has failed"});
}

}  // namespace jaxccomp
