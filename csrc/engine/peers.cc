#include "engine/peers.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

namespace jaxccomp {

uint64_t StartTimeOf(int64_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "re"),
                                                             std::fclose);
  if (file == nullptr) return 0;
  char text[1024];
  const size_t length = std::fread(text, 1, sizeof(text) - 1, file.get());
  text[length] = '\0';
  // "PID (NAME) STATE ...", where the name may have any character.
  const char* const after_name = std::strrchr(text, ')');
  char state = 0;
  unsigned long long start_time = 0;
  // The 22nd field; the state is the third.
  constexpr const char* kFormat =
      " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s"
      " %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu";
  if (after_name == nullptr || std::sscanf(after_name + 1, kFormat, &state, &start_time) != 2) {
    return 0;
  }
  return state == 'Z' || state == 'X' ? 0 : start_time;
}

bool Peers::MarkFailed(int process, const Status& why, bool dead) {
  const auto [entry, is_new] = failed_.try_emplace(process, Failure{why, dead});
  if (is_new) return true;
  // Keep the first reason: a process may report the reason of its end and die afterwards.
  entry->second.dead |= dead;
  return false;
}

const Peers::Failure* Peers::Find(int process) const {
  const auto found = failed_.find(process);
  return found == failed_.end() ? nullptr : &found->second;
}

std::vector<int> Peers::FindDead() {
  std::vector<int> dead;
  for (size_t process = 0; process < processes_.size(); ++process) {
    SystemProcess& each = processes_[process];
    if (each.pid == 0 || StartTimeOf(each.pid) == each.start_time) continue;
    each.pid = 0;
    dead.push_back(static_cast<int>(process));
  }
  return dead;
}

}  // namespace jaxccomp
