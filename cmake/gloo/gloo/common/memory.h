#pragma once

#include <memory>
#include <thread>

// Debian's libgloo-dev (0.0~git20220518) lacks this header, which its other headers include. This replacement declares
// the same three classes as the compiled library: each holds one shared or weak pointer and nothing else. It is
// searched after all other include folders (cmake/Gloo.cmake), so a package that has the header uses its own.
//
// The classes keep an object alive for the moment in which a thread uses it while another thread owns and destroys it.
// The owner's destructor waits for such uses to end; a later use finds a null pointer.
namespace gloo {

template <typename T>
class WeakNonOwningPtr;
template <typename T>
class ShareableNonOwningPtr;

// A use of the object that keeps it alive, or null if it is gone.
template <typename T>
class NonOwningPtr final {
 public:
  NonOwningPtr() {}
  explicit NonOwningPtr(const WeakNonOwningPtr<T>& weak) : ptr_(weak.ptr_.lock()) {}
  T* operator->() const noexcept { return ptr_.get(); }
  explicit operator bool() const noexcept { return static_cast<bool>(ptr_); }

 private:
  std::shared_ptr<T> ptr_;
};

// The weak reference that other objects keep.
template <typename T>
class WeakNonOwningPtr final {
 public:
  WeakNonOwningPtr() {}
  explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>& object) : ptr_(object.ptr_) {}
  // Returns whether it refers to any object, alive or not.
  explicit operator bool() const noexcept {
    const std::weak_ptr<T> none;
    return ptr_.owner_before(none) || none.owner_before(ptr_);
  }

 protected:
  std::weak_ptr<T> ptr_;
  friend class NonOwningPtr<T>;
};

// The owner's reference to the object.
template <typename T>
class ShareableNonOwningPtr final {
 public:
  explicit ShareableNonOwningPtr(T* object) : ptr_(object, [](void*) {}) {}
  ShareableNonOwningPtr(const ShareableNonOwningPtr&) = delete;
  ShareableNonOwningPtr& operator=(const ShareableNonOwningPtr&) = delete;
  ~ShareableNonOwningPtr() {
    const std::weak_ptr<T> uses(ptr_);
    ptr_.reset();
    while (!uses.expired()) std::this_thread::yield();
  }

 protected:
  std::shared_ptr<T> ptr_;
  friend class WeakNonOwningPtr<T>;
};

}  // namespace gloo
