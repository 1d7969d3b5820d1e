// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import java.nio.ByteBuffer

import scala.jdk.CollectionConverters._

import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.flow.Urgency
import sparkdl.comm.transport.InMemoryNetwork

class PublishedBlocksSpec extends AnyFunSuite {
  private val executor = new InMemoryNetwork().executor(0)
  private val served = new ServedBlocks
  private val blocks = new PublishedBlocks(7, executor, served)
  private def as(version: Long) = ServedBlocks.Priority(Urgency(version, 3), _.port)
  private def names: Set[String] = executor.published.keySet.asScala.toSet

  test("blocks of one version and kind are retired except a held one, and finally all others") {
    for (
      bucket <- 0 until 3; version <- Seq(1L, 2L); kind <- Seq(Notice.Parameters, Notice.Gradients)
    )
      blocks.put(
        s"${kind}_${bucket}_$version",
        kind,
        version,
        Array(ByteBuffer.allocate(4)),
        as(version)
      )
    val all = names
    def ofOne(name: String): Boolean =
      name.startsWith(s"${Notice.Gradients}_") && name.endsWith("_1")

    assert(blocks.retire(Notice.Gradients, 1, () => true) === None)
    assert(names === all.filterNot(ofOne) && names.size === 9)
    for (name <- all) assert((served(7, name).urgency.order == 3) === names(name))
    assert(
      blocks.retire(Notice.Gradients, 1, () => true) === None,
      "a missing block counts as retired"
    )
    executor.heldAttempts = executor.attemptsToRetire.get + 1
    val held = blocks.retire(Notice.Parameters, 1, () => true)
    assert(held.exists(names) && names.size === 9)
    executor.heldAttempts = executor.attemptsToRetire.get + 1
    assert(!blocks.clear(() => true) && names.size === 1, "other blocks do not wait for it")
    assert(blocks.clear(() => true) && names.isEmpty)
  }
}
