// What a user did, and how to put it right.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace stepplan {

/// A mistake that the user can fix: reported with its code and fix.
class UserMistake : public std::runtime_error {
 public:
  UserMistake(std::string code, const std::string& problem, std::string fix)
      : std::runtime_error(problem), code(std::move(code)), fix(std::move(fix)) {}
  std::string code, fix;
};

}  // namespace stepplan
