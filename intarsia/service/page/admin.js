// What administrators do: whether this page may do it.

let allowed = false;

export const administrator = () => allowed;

export function startAdmin(info) {
  allowed = info.keys.admin || !info.keys.user;
}
