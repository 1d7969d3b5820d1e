package sparkdl.comm.ps

import sparkdl.comm.flow.{PhaseNumbers, Urgency}

/**
 * Priorities of the blocks that one rank serves to the others.
 *
 * Parameters of a version come before its gradients, and its gradients before the parameters of the next version. So a
 * rank that is behind gets the data that lets it catch up. The others' gradients are of no use to it before its own.
 */
private[ps] final class BlockUrgencies(node: PsNode) {
  private val phases = new PhaseNumbers(() => node.nextPhase())

  /** Return the priority of parameters. Forward needs the first layers first. */
  def parameters(version: Long, slice: ShardSlice): Urgency = Urgency(phases(2 * version), slice.firstLayer)

  /**
   * Return the priority of gradients. Backward makes the last layers first, and the optimizer takes them in that order.
   */
  def gradients(version: Long, slice: ShardSlice): Urgency = Urgency(phases(2 * version + 1), -slice.firstLayer)
}

private[ps] object BlockUrgencies {

  /** Priority of messages that belong to no block. They are small and rare. */
  val OfMessages: Urgency = Urgency(0, 0)
}
