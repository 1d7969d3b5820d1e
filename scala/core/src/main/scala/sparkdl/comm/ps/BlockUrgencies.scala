package sparkdl.comm.ps

import sparkdl.comm.flow.{PhaseNumbers, Urgency}

/**
 * How urgent the blocks are that the others get of one rank.
 *
 * Parameters of a version come before its gradients, and those before the parameters of the next one. So a rank that is behind
 * gets what lets it catch up: the others' gradients do nothing for it before its own ones are there.
 */
private[ps] final class BlockUrgencies(node: PsNode) {
  private val phases = new PhaseNumbers(() => node.nextPhase())

  /** Forward needs the first layers first. */
  def parameters(version: Long, slice: ShardSlice): Urgency = Urgency(phases(2 * version), slice.firstLayer)

  /** Backward makes the last layers first, and so the optimizer takes them. */
  def gradients(version: Long, slice: ShardSlice): Urgency = Urgency(phases(2 * version + 1), -slice.firstLayer)
}

private[ps] object BlockUrgencies {

  /** Of what is no block, little and seldom. */
  val First: Urgency = Urgency(0, 0)
}
