package sparkdl.comm.ibatch

/**
 * Data that the ranks of a fit exchange in an iteration.
 *
 * @param world number of ranks
 * @param pull bytes of each layer's parameters on the network.
 * @param push approximate bytes of each layer's gradients on the network
 * @param noticeBytes largest batch, in bytes, that travels inside its notices
 * @param pullsAhead parameters are pulled while gradients are still pushed
 */
private[comm] final case class Traffic(
    world: Int,
    pull: IndexedSeq[Long],
    push: IndexedSeq[Long],
    noticeBytes: Long,
    pullsAhead: Boolean
) {
  require(
    pull.size == push.size,
    s"${pull.size} layers are pulled, but ${push.size} are pushed: the numbers must be equal"
  )

  def layers: Int = pull.size
}
