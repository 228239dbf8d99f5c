pub(super) fn kernel() -> Option<super::Kernel> {
    None
}
