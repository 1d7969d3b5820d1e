// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ps

import com.codahale.metrics.MetricRegistry
import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.{CommConf, CommException, ManualClock}
import sparkdl.comm.transport.{ChunkPeer, InMemoryNetwork}

class PsNodeSpec extends AnyFunSuite {
  private val clock = new ManualClock
  private val executor = new InMemoryNetwork().executor(1)
  private val node = new PsNode(executor, CommConf(0, 1), new MetricRegistry, clock)

  test("the port stays open while there is a rank, and for half a minute after the last one left") {
    val first = node.join(7, 0)
    assert(node.address === ChunkPeer("here", 1, "1"))
    first.close()
    clock.advance(29)
    val second = node.join(7, 1)
    clock.advance(3600)
    assert((executor.opened.get, executor.closed.get) === ((1, 0)))
    second.close()
    clock.advance(29)
    assert(executor.closed.get === 0)
    clock.advance(1)
    assert(executor.closed.get === 1)
    node.address
    assert(executor.opened.get === 2)
  }

  test("a taken port fails the rank that needs it, with the key to change") {
    val executor = new InMemoryNetwork().executor(1)
    executor.portsTaken = true
    val node = new PsNode(executor, CommConf(40000, 3), new MetricRegistry, clock)
    val error = intercept[CommException](node.address)
    assert(error.kind === CommException.Conf && error.getMessage.contains(
      "spark.sparkdl.comm.ports=40000-40002"
    ))
    executor.portsTaken = false
    assert(node.address === ChunkPeer("here", 1, "1"))
  }

  test("a rank can join only once") {
    val session = node.join(8, 0)
    assert(intercept[CommException](node.join(8, 0)).getMessage.contains("rank 0 of job 8"))
    session.close()
  }
}
