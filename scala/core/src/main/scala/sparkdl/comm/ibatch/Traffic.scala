package sparkdl.comm.ibatch

/**
 * What travels between the ranks of a fit in an iteration.
 *
 * @param world how many ranks
 * @param pull bytes of each layer's parameters on the network; `push`: of its gradients, about
 * @param noticeBytes batches of so many bytes, or fewer, come with the notices that they are there
 * @param ahead parameters are pulled while gradients are still pushed
 */
private[comm] final case class Traffic(
    world: Int,
    pull: IndexedSeq[Long],
    push: IndexedSeq[Long],
    noticeBytes: Long,
    ahead: Boolean
) {
  require(pull.size == push.size, s"as many layers are pulled (${pull.size}) as pushed (${push.size})")

  def layers: Int = pull.size
}
