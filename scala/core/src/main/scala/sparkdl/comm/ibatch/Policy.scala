package sparkdl.comm.ibatch

import scala.util.Try

/** How a network is cut into batches. */
private[comm] sealed abstract class Policy(val name: String) {

  /** Whether that depends on how long anything takes. */
  def needsProfile: Boolean = this match {
    case Policy.Whole | Policy.Layerwise | Policy.PaperLayerwise | Policy.Fixed(_) => false
    case _ => true
  }

  /** Whether the planner cuts the batches, from how long layers compute; others cut without looking at that. */
  def isPlanned: Boolean = this match {
    case Policy.Parts(_) => false
    case _ => needsProfile
  }

  /** Whether a batch of parameters is asked for when the one before is here, as the paper's one thread does it. */
  def inTurn: Boolean = this == Policy.Paper || this == Policy.PaperLayerwise
}

private[comm] object Policy {

  /** One communication for everything. */
  case object Whole extends Policy("whole")

  /** One for each layer. */
  case object Layerwise extends Policy("layerwise")

  /** The paper's Algorithm 1. */
  case object Greedy1 extends Policy("greedy1")

  /** The paper's Algorithm 2. */
  case object Greedy2 extends Policy("greedy2")

  /** The better one of the two, as the paper has it. Of both directions at once: [[Planner.together]]. */
  case object IBatch extends Policy("ibatch")

  /** The same, for batches of which each is asked for when the one before is here: see [[Profile.inTurn]]. */
  case object Paper extends Policy("paper")

  /** One for each layer, likewise: what the paper compares with. */
  case object PaperLayerwise extends Policy("paper-layerwise")

  /** No plan of one direction takes less time. */
  case object Optimal extends Policy("optimal")

  /** At most `count` parts that take about as long to transfer; the first one is cut once more. */
  final case class Parts(count: Int) extends Policy(s"parts:$count")

  /** As many layers as fit into `bytes`, at least one. */
  final case class Fixed(bytes: Long) extends Policy(s"fixed:$bytes")

  private val named: Seq[Policy] = Seq(Whole, Layerwise, Greedy1, Greedy2, IBatch, Paper, PaperLayerwise, Optimal)

  /** More than any network has layers. */
  private val MostParts = 1000000

  def apply(text: String): Policy = named
    .find(_.name == text)
    .orElse(number(text, "parts:").filter(_ <= MostParts).map(count => Parts(count.toInt)))
    .orElse(number(text, "fixed:").map(Fixed(_)))
    .getOrElse(throw new IllegalArgumentException(
      s"policy $text: one of ${named.map(_.name).mkString(", ")}, parts:COUNT with COUNT of 1 to $MostParts, or fixed:BYTES " +
        "with BYTES of at least 1"
    ))

  private def number(text: String, prefix: String): Option[Long] =
    Some(text).filter(_.startsWith(prefix)).flatMap(rest => Try(rest.drop(prefix.length).toLong).toOption).filter(_ > 0)
}
