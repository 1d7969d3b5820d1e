// SPDX-License-Identifier: Apache-2.0

package com.intel.analytics.bigdl

import com.intel.analytics.bigdl.dllib.utils.{Engine, EngineType}

/** Setter of BigDL's engine, which is internal to BigDL and otherwise set when the JVM starts. */
object OtherEngine {

  /** Run `body` while `engine` is set. */
  def during[T](engine: EngineType)(body: => T): T = {
    val before = Engine.getEngineType()
    Engine.setEngineType(engine)
    try body
    finally Engine.setEngineType(before)
  }
}
